"""Gives expert slots back while other programs need the memory, and takes them again later. Knows bytes, no experts.

The same for RAM and for a graphics card's memory.
"""

import time
from collections.abc import Callable
from typing import Protocol

from engine.experts.cache import ExpertCache

_LOOK_SECONDS = 0.25  # between two looks at the system, which take about 0.2 ms
_PATIENCE_SECONDS = 5.0  # before memory that has become free is taken, since who gave it may want it back
_STEP_BYTES = 128 << 20  # at least, so that a slow leak elsewhere does not cost a slot with every look


class Slots(Protocol):
    """An arena."""

    stride: int
    num_slots: int

    def give_back(self, first: int) -> None:
        """The slots from `first` on need no memory."""

    def take_back(self, count: int) -> int:
        """Have memory for the first `count` slots again; for how many there is some."""
        ...


class SlotBudget:
    """`room()` is what this process may still take; below `reserve_bytes` slots go, from the arena's end.

    The experts there are absent then. Never fewer than `least` slots stay. Where it `is_due`, `adjust` while nothing loads.
    """

    def __init__(
        self,
        cache: ExpertCache,
        arena: Slots,
        least: int,
        reserve_bytes: int,
        room: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache, self._arena, self._least, self._reserve = cache, arena, min(least, arena.num_slots), reserve_bytes
        self._room, self._clock = room, clock
        self.num_slots = arena.num_slots  # in use: those below
        self._looked_at = self._changed_at = clock()

    def is_due(self) -> bool:
        return self._clock() - self._looked_at >= _LOOK_SECONDS

    def adjust(self, prepare: Callable[[], object] = lambda: None) -> None:
        """`prepare` is called before slots go or come, if any do."""
        now = self._looked_at = self._clock()
        spare = self._room() - self._reserve
        if spare < 0:
            wanted = self.num_slots - max(-spare, _STEP_BYTES) // self._arena.stride
            self._resize(max(self._least, wanted), now, prepare)
        elif self.num_slots < self._arena.num_slots and now - self._changed_at >= _PATIENCE_SECONDS and spare > 2 * _STEP_BYTES:
            self._resize(min(self._arena.num_slots, self.num_slots + spare // 2 // self._arena.stride), now, prepare)

    def shrink(self, share: float) -> bool:
        """Give that share of the slots back at once, because memory was refused. False where there are none to spare."""
        wanted = max(self._least, int(self.num_slots * (1 - share)))
        if wanted == self.num_slots:
            return False
        self._resize(wanted, self._clock())
        return True

    def _resize(self, num_slots: int, now: float, prepare: Callable[[], object] = lambda: None) -> None:
        self._changed_at = now
        if num_slots == self.num_slots:
            return
        prepare()
        if num_slots < self.num_slots:
            self._cache.retire(range(num_slots, self.num_slots))
            self._arena.give_back(num_slots)
        else:
            num_slots = max(self.num_slots, self._arena.take_back(num_slots))
            self._cache.restore(range(self.num_slots, num_slots))
        self.num_slots = num_slots
