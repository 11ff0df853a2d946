"""Lengths of a timeline that one can go back to, with what is kept for each. Few, and denser towards the end."""

from typing import Generic, TypeVar

from engine.plan.footprint import MARKS

_T = TypeVar("_T")


class Marks(Generic[_T]):
    """At most `MARKS` of them."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, _T]] = []  # the shortest first

    def is_new(self, length: int) -> bool:
        """Whether a mark there would say anything: it is beyond all others."""
        return not self._marks or self._marks[-1][0] < length

    def add(self, length: int, kept: _T) -> None:
        self._marks.append((length, kept))
        if len(self._marks) > MARKS:
            del self._marks[self._least_useful()]

    def _least_useful(self) -> int:
        """The mark whose loss adds least to what must be read again, for its distance: marks lie denser towards the end."""
        lengths = [0, *(length for length, _ in self._marks)]
        costs = [(lengths[i + 1] - lengths[i - 1]) / (lengths[-1] - lengths[i]) for i in range(1, len(lengths) - 1)]
        return costs.index(min(costs))

    def before(self, length: int) -> int:
        """The longest one within `length`; 0 where there is none."""
        return max((marked for marked, _ in self._marks if marked <= length), default=0)

    def cut(self, length: int) -> None:
        """Forget those beyond."""
        self._marks = [mark for mark in self._marks if mark[0] <= length]

    def at(self, length: int) -> _T | None:
        """What is kept for just that length."""
        return next((kept for marked, kept in self._marks if marked == length), None)
