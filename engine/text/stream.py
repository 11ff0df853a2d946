"""Ends an answer at a stop string that may arrive in pieces. Text only."""

from collections.abc import Sequence


class StopStrings:
    """Passes text through, holding back a tail that may be the beginning of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.is_hit = False

    def add(self, text: str) -> str:
        """The part of all text so far that is now certain; nothing of a stop string or after it. Sets `is_hit`."""
        self._held += text
        found = [index for stop in self._stops if (index := self._held.find(stop)) >= 0]
        if found:
            self.is_hit = True
            certain, self._held = self._held[: min(found)], ""
            return certain
        keep = max((overlap(self._held, stop) for stop in self._stops), default=0)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return certain

    def finish(self) -> str:
        """The held tail: it was no stop string after all."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that begins `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
