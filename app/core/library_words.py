"""Models on this computer → the words of their rows. Pure; no Qt."""

from datetime import UTC, datetime

from app.core.figures import format_bytes
from app.core.verdicts import licence_text
from engine.protocol import ModelEntry, ModelState

STATE_WORDS = {
    ModelState.WHOLE: "Verified", ModelState.UNVERIFIED: "Not compared", ModelState.ARRIVING: "Incomplete",
    ModelState.DAMAGED: "Damaged", ModelState.AWAY: "Drive not available",
}  # fmt: skip
STATE_COLORS = {
    ModelState.WHOLE: "ok", ModelState.UNVERIFIED: "muted", ModelState.ARRIVING: "warn", ModelState.DAMAGED: "bad",
    ModelState.AWAY: "warn",
}  # fmt: skip
STATE_HINTS = {
    ModelState.WHOLE: "Every file was compared with its checksum.",
    ModelState.UNVERIFIED: "Stoker did not bring it, so it knows no checksums to compare with.",
    ModelState.ARRIVING: "Not all of it has arrived.",
    ModelState.DAMAGED: "A file does not match its checksum.",
    ModelState.AWAY: "It comes back by itself when its drive does.",
}


def state_words(entry: ModelEntry) -> tuple[str, str]:
    """What the chip says, and the name of its colour."""
    if entry.problem and entry.state in (ModelState.WHOLE, ModelState.UNVERIFIED):
        return "Cannot be loaded", "bad"
    return STATE_WORDS[entry.state], STATE_COLORS[entry.state]


def entry_subtitle(entry: ModelEntry, now: float) -> str:
    if entry.problem:
        return entry.problem
    return " · ".join(filter(None, (licence_text(entry.licence), used_text(entry.last_used, now))))


def entry_size(entry: ModelEntry) -> str:
    return " · ".join(filter(None, (entry.weight_format, format_bytes(entry.bytes) if entry.bytes else "")))


def used_text(seconds: float, now: float) -> str:
    """By the local calendar, as the conversation list counts days."""
    if not seconds:
        return "not used yet"
    days = (_day(now) - _day(seconds)).days
    if days <= 0:
        return "used today"
    return "used yesterday" if days == 1 else f"used {days} days ago" if days < 60 else f"used {days // 30} months ago"


def _day(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
