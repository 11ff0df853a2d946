"""Byte counts and rates as people write them. Decimal units throughout (1 GB = 1e9 bytes), as drives and links are sold."""

import re

from engine.errors import EngineError

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
_SUFFIXES = {
    "": 1, "b": 1, "k": KB, "kb": KB, "m": MB, "mb": MB, "g": GB, "gb": GB, "t": TB, "tb": TB,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_MOST = 2**62  # more than any computer has, and still a number that every format takes
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def format_bytes(count: float) -> str:
    """1_274_019_840 -> '1.27 GB'; three significant digits from KB up."""
    for unit, size in (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB)):
        if abs(count) >= 0.9995 * size:
            value = count / size
            digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{count:.0f} B"


def parse_bytes(text: str, *, whole: int | None = None) -> int:
    """'3GB', '512 MiB', '800000000' or, where `whole` is given, '30%' of it. Raises `EngineError` naming the text."""
    if whole is not None and text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1])
        except ValueError:
            share = -1.0
        if 0 <= share <= 100:
            return int(whole * share / 100)
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _SUFFIXES:
        percent = " or a share such as 30%" if whole is not None else ""
        raise EngineError("units.unreadable", f"{text!r} is not an amount of memory.", f"Write 3GB, 512MiB{percent}.")
    return min(int(float(match[1][:30]) * _SUFFIXES[match[2].lower()]), _MOST)
