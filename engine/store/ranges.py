"""Sets of byte ranges `[first, end)` of one file: what is there, what is missing. Arithmetic alone."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    """Disjoint, sorted, and never touching one another; adding is cheap where ranges grow at their ends."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in spans:
            self.add(first, end)

    def add(self, first: int, end: int) -> None:
        assert 0 <= first <= end, f"no range: {first} to {end}"
        if first == end:
            return
        low = bisect_left(self._ends, first)
        high = bisect_right(self._firsts, end)
        if low < high:
            first, end = min(first, self._firsts[low]), max(end, self._ends[high - 1])
        self._firsts[low:high] = [first]
        self._ends[low:high] = [end]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._firsts, self._ends, strict=True)))

    @property
    def nbytes(self) -> int:
        return sum(self._ends) - sum(self._firsts)

    def end_of(self, offset: int) -> int:
        """Up to where every byte from `offset` on is there; `offset` itself where that byte is missing."""
        index = bisect_right(self._firsts, offset) - 1
        return max(offset, self._ends[index]) if index >= 0 else offset

    def missing(self, size: int) -> list[tuple[int, int]]:
        """The gaps of a file of `size` bytes, in order."""
        gaps, position = [], 0
        for first, end in self:
            if first > position:
                gaps.append((position, first))
            position = end
        if position < size:
            gaps.append((position, size))
        return gaps
