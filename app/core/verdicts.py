"""Models on offer → the words and figures of their rows, and which release of one suits this computer. Pure; no Qt."""

from collections.abc import Callable
from typing import Any

from app.core.figures import format_bytes, format_range
from engine.protocol import Change, Fit, Gate, HubModel, Release, Verdict

FIT_WORDS = {
    Fit.VRAM: "Fits in VRAM", Fit.VRAM_RAM: "VRAM + RAM", Fit.RAM: "Fits in RAM", Fit.DISK: "Streams from disk",
    Fit.NO_SPACE: "Too big for this disk", Fit.NO_MEMORY: "Too little memory", Fit.UNSUPPORTED: "Not supported yet",
}  # fmt: skip
FIT_COLORS = {  # names of a palette's colours
    Fit.VRAM: "vram", Fit.VRAM_RAM: "ram", Fit.RAM: "ram", Fit.DISK: "disk", Fit.NO_SPACE: "bad", Fit.NO_MEMORY: "bad",
    Fit.UNSUPPORTED: "muted",
}  # fmt: skip
GATE_WORDS = {Gate.OPEN: "", Gate.TERMS: "sign-in and terms", Gate.REVIEW: "its makers decide who gets it"}
SORTS = {"speed": "Speed", "size": "Size", "name": "Name"}
_FITS = tuple(Fit)


def best_release(model: HubModel) -> Release:
    """The one to propose: where it would live fastest; in RAM the largest, from disk the one with the fewest bytes to read."""

    def rank(release: Release) -> tuple[int, int]:
        fit = release.verdict.fit if release.verdict is not None else Fit.UNSUPPORTED
        return _FITS.index(fit), -release.bytes if fit in (Fit.VRAM, Fit.VRAM_RAM, Fit.RAM) else release.bytes

    return min(model.releases, key=rank)


def sort_models(models: tuple[HubModel, ...], key: str) -> tuple[HubModel, ...]:
    """By a key of `SORTS`; any other leaves them as they are."""
    keys: dict[str, Callable[[HubModel], Any]] = {
        "speed": lambda model: (not _runs(model), -_speed(model), best_release(model).bytes),
        "size": lambda model: best_release(model).bytes,
        "name": lambda model: model.name.lower(),
    }
    return tuple(sorted(models, key=keys[key])) if key in keys else models


def formats_of(models: tuple[HubModel, ...]) -> tuple[str, ...]:
    return tuple(sorted({release.weight_format for model in models for release in model.releases if release.weight_format}))


def in_format(models: tuple[HubModel, ...], weight_format: str) -> tuple[HubModel, ...]:
    """Those that come in it; all for an empty one."""
    if not weight_format:
        return models
    return tuple(model for model in models if any(release.weight_format == weight_format for release in model.releases))


def recommended(models: tuple[HubModel, ...]) -> tuple[HubModel, ...]:
    """Those that run here."""
    return tuple(model for model in models if _runs(model))


def subtitle(model: HubModel) -> str:
    """'30.5B, 3.3B active · Apache-2.0 · sign-in and terms'."""
    parts = (params_text(model), licence_text(model.licence), GATE_WORDS[model.gate], _popularity(model))
    return " · ".join(filter(None, parts)) or model.architecture


def params_text(model: HubModel) -> str:
    if not model.total_params:
        return ""
    total = f"{_billions(model.total_params)} parameters" if not model.active_params else _billions(model.total_params)
    return f"{total}, {_billions(model.active_params)} active" if model.active_params else total


def licence_text(licence: str) -> str:
    known = {"apache-2.0": "Apache-2.0", "mit": "MIT"}
    return known.get(licence.lower(), licence)


def bytes_text(release: Release) -> str:
    """'31.2 GB', or 'about 31.2 GB' where nobody has counted; empty where nothing is known."""
    size = format_bytes(release.bytes) if release.bytes else ""
    return f"about {size}" if size and release.is_about else size


def size_text(release: Release) -> str:
    return " · ".join(filter(None, (release.weight_format, bytes_text(release))))


def speed_text(verdict: Verdict | None) -> str:
    """'16–20', or empty where nothing is predicted."""
    has_speed = verdict is not None and verdict.tokens_per_second is not None and verdict.fit.runs
    return format_range(*verdict.tokens_per_second) if has_speed and verdict and verdict.tokens_per_second else ""


def gain_text(verdict: Verdict) -> str:
    """What more memory would buy; empty where that is not known or nothing."""
    gains = verdict.plan.gains if verdict.plan is not None and verdict.fit.runs else ()
    gain = next((gain for gain in gains if gain.change is Change.RAM), None)
    if gain is None or verdict.tokens_per_second is None:
        return ""
    now, then = format_range(*verdict.tokens_per_second), format_range(*gain.tokens_per_second)
    return f"With {gain.text}: {then} tokens/s instead of {now}." if now != then else ""


def _runs(model: HubModel) -> bool:
    verdict = best_release(model).verdict
    return verdict is not None and verdict.fit.runs


def _speed(model: HubModel) -> float:
    verdict = best_release(model).verdict
    return verdict.tokens_per_second[1] if verdict is not None and verdict.tokens_per_second else 0.0


def _billions(count: int) -> str:
    value = count / 1e9
    return f"{value:.0f}B" if value >= 99.5 else f"{value:.1f}B".replace(".0B", "B")


def _popularity(model: HubModel) -> str:
    if not model.downloads:
        return ""
    count = model.downloads
    short = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K" if count >= 1e3 else str(count)
    return f"{short} downloads a month"
