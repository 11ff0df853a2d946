"""Numbers as the window writes them: with a unit, three significant digits, decimal units (1 GB = 1e9 bytes). Pure."""

_THIN = "\u202f"  # between thousands; does not break


def format_bytes(count: float) -> str:
    """1_274_019_840 → '1.27 GB'."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= 0.9995 * size:
            return f"{three_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def three_digits(value: float) -> str:
    """1.274 → '1.27', 12.74 → '12.7', 127.4 → '127'."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def format_rate(rate: float) -> str:
    """18.43 → '18.4', 0.284 → '0.28', 412.3 → '412'."""
    return f"{rate:.2f}" if rate < 0.995 else f"{rate:.1f}" if rate < 99.95 else f"{rate:.0f}"


def format_range(low: float, high: float) -> str:
    """(16.2, 20.4) → '16–20', (2.13, 2.9) → '2.1–2.9'."""
    digits = 0 if high >= 9.95 else 1 if high >= 0.95 else 2
    first, second = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return first if first == second else f"{first}–{second}"


def format_seconds(seconds: float) -> str:
    """0.012 → '12 ms', 0.93 → '0.9 s', 6.2 → '6 s', 83 → '1 min 23 s'."""
    if seconds < 0.05:
        return format_ms(seconds)
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 2.95 else f"{seconds:.0f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def format_ms(seconds: float) -> str:
    """0.0531 → '53 ms', 0.0042 → '4.2 ms', 1.25 → '1250 ms'."""
    return f"{seconds * 1000:.1f} ms" if 0 < seconds < 0.00995 else f"{seconds * 1000:.0f} ms"


def format_count(count: int, noun: str) -> str:
    """(1240, 'token') → '1 240 tokens'."""
    return f"{format_number(count)} {noun}{'' if count == 1 else 's'}"


def format_number(count: int) -> str:
    return f"{count:,}".replace(",", _THIN)


def format_tokens_short(count: int) -> str:
    """For the context: 812 → '812', 2_148 → '2.1K', 32_768 → '32K'. K is 1024, as context sizes are named."""
    if count < 1000:
        return str(count)
    thousands = count / 1024
    return f"{thousands:.1f}K" if thousands < 9.95 and count % 1024 else f"{thousands:.0f}K"
