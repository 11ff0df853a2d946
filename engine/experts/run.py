"""Brings the routed experts of one layer into RAM and has them computed. Knows slots and bytes, no architecture.

Hits are computed first while the misses are read; misses follow in the order in which they land. The sum over a token's
experts is always taken in routing order, so that with one set of kernels placement cannot change even the rounding.

Behind a decoded token's misses the drive gets the next layer's likely ones, so that it does not idle until that layer's router
has run. Those that routing then does not ask for are given up where their read has not begun, and counted apart where it has.
"""

import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from engine.checkpoint.experts import ExpertMap
from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.call import Call
from engine.experts.lanes import Lanes
from engine.experts.policy import Expert
from engine.experts.table import SlotTable
from engine.experts.trust import Trust
from engine.meter import Link, Meter, Phase
from engine.tiers.arena import RamArena, run_bases
from engine.tiers.disk import DiskReader, Read

Landed = tuple[Expert, int, Exception | None]  # which, bytes read, what went wrong
LookAhead = Callable[[int, torch.Tensor], list[Expert]]
"""From a layer and its input x [1, H] to the experts that the next one will probably want, the likeliest first."""

_ONE_BASE = (0,)
_LONG_SECONDS = 60.0  # for a few experts
_LOADED_AT_ONCE = 8  # enough for any drive, and few enough to stop in time


class ExpertRunner:
    """The RAM tier over the disk tier. One thread calls it; the reader's threads only fill claimed slots."""

    def __init__(
        self,
        experts: ExpertMap,
        cache: ExpertCache,
        arena: RamArena,
        table: SlotTable,
        reader: DiskReader,
        lanes: Lanes,
        meter: Meter,
        look_ahead: LookAhead,
        budget: SlotBudget,
    ) -> None:
        self._experts, self._cache, self._arena, self._table = experts, cache, arena, table
        self._reader, self._lanes, self._meter = reader, lanes, meter
        self._look_ahead, self._budget = look_ahead, budget
        self._landed: queue.SimpleQueue[Landed] = queue.SimpleQueue()
        self._reads: dict[Expert, tuple[Read, int]] = {}  # on their way, and the slot of each
        self._guessed: set[Expert] = set()  # read for the next layer, which has not asked yet
        self._unasked: set[Expert] = set()  # on their way in vain
        self._trust = Trust()
        self._is_decode = False

    @property
    def num_slots(self) -> int:
        """In use."""
        return self._budget.num_slots

    def begin(self, phase: Phase) -> None:
        """A pass follows. Only decoded tokens say what is worth keeping: a prompt passes through the guests' slots."""
        self._is_decode = phase is Phase.DECODE
        self._lanes.begin_pass(phase)
        self._give_up(self._guessed & self._reads.keys())  # as a pass that failed or was cancelled may have left them
        self._guessed = set()
        self._unasked.update(self._reads)
        if self._budget.is_due():
            self._budget.adjust(self._let_go)

    def shrink(self, share: float) -> bool:
        """A device refused memory: give so much of its slots back. False where there is none to give."""
        return self._lanes.shrink(share)

    def misses(self) -> Any:
        """See `Session.misses`."""
        return self._lanes.kept()

    def bring(self, experts: Sequence[Expert], seconds: float) -> dict[Expert, int]:
        """The slots of the first of these experts, as many as fit beside one another, read now where they are absent and time
        is left."""
        first = experts[: max(1, self.num_slots - self._cache.member_slots)]
        absent = [expert for expert in first if self._cache.lookup(*expert) is None]
        self.load(absent, seconds, lambda _: None, keep=False)
        return {expert: slot for expert in first if (slot := self._cache.lookup(*expert)) is not None}

    @property
    def notice(self) -> str:
        """A sentence on what helps nobody; empty when all is well."""
        return self._lanes.notice

    def end(self) -> None:
        """The pass is complete."""
        self._lanes.end_pass()

    def load(self, experts: Sequence[Expert], seconds: float, progress: Callable[[int], None], *, keep: bool = True) -> None:
        """Read experts that an earlier run used most, in that order, as far as time allows, and keep them in RAM. What fails is
        left to later."""
        deadline, waiting, count = time.perf_counter() + seconds, deque(experts), 0
        while (waiting and time.perf_counter() < deadline) or self._reads:
            if time.perf_counter() < deadline:
                self._start(waiting, (), at_once=_LOADED_AT_ONCE - len(self._reads))
            assert self._reads, "only as many are asked for as there are free slots"
            landed = self._landed.get()
            if self._land(landed)[1] is None:
                if keep:
                    self._cache.admit(*landed[0])
                count += 1
                progress(count)

    def whole(self) -> list[int] | None:
        """RAM's slots of all experts, layer by layer; None where some are absent."""
        layers, count = self._experts.layers, self._experts.num_experts
        if self._cache.num_resident < len(layers) * count:
            return None
        held = self._cache.residents()
        return [held[layer, expert] for layer in layers for expert in range(count)]

    def first_slots(self, count: int) -> list[int]:
        """The slots of some experts, read now where none is there."""
        layer = self._experts.layers[0]
        some = [(layer, expert) for expert in range(min(count, self._experts.num_experts))]
        return list(self.bring(some, _LONG_SECONDS).values())

    def _let_go(self) -> None:
        """Nobody reads a slot, and nothing is on its way into one."""
        self._settle()
        self._lanes.release()

    def _settle(self) -> None:
        """Until nothing is on its way."""
        for expert in list(self._reads):
            self._cancel(expert)
        while self._reads:
            self._land(self._landed.get())

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x [T, H], ids [T, k], weights [T, k] to [T, H]. Raises `EngineError`."""
        if self._is_decode and (alone := self._lanes.alone(layer, x, ids, weights)) is not None:
            return alone
        call = Call(layer, x, ids, weights)
        wanted = self._lanes.begin(call)
        while not self._landed.empty():
            self._land(self._landed.get())
        guessed, self._guessed = self._guessed, set()
        if guessed:
            wrong = guessed.difference(wanted)
            self._trust.judge(len(guessed) - len(wrong), len(guessed))
            self._give_up(wrong)
        hits = {expert: slot for expert in wanted if (slot := self._cache.lookup(*expert)) is not None}
        num_hits = sum(expert not in guessed for expert in hits)
        self._meter.lookups(len(call.wanted) - len(wanted) + num_hits, len(wanted) - num_hits)
        self._trust.saw(len(wanted) - num_hits)
        if len(hits) == len(wanted):
            self._guess(layer, x, hits)
            y = self._lanes.serve(call, hits, is_last=True)
        else:
            y = self._serve_as_they_land(call, hits, [expert for expert in wanted if expert not in hits])
        if self._is_decode:
            self._cache.touch(layer, [expert for _, expert in wanted])
        assert y is not None, "the last call sums"
        return y

    def _serve_as_they_land(self, call: Call, hits: dict[Expert, int], misses: Collection[Expert]) -> torch.Tensor | None:
        """Reads into every slot that nothing still to be computed occupies; a prompt may touch more experts than fit."""
        y = None
        awaited = {expert for expert in misses if expert in self._reads}
        self._unasked -= awaited
        waiting = deque(expert for expert in misses if expert not in awaited)
        awaited |= self._start(waiting, hits)
        if not waiting:
            self._guess(call.layer, call.x, hits)
        if hits:
            self._lanes.serve(call, hits, is_last=False)
            awaited |= self._start(waiting, ())
        while awaited or waiting:
            assert self._reads, "guests always leave a slot to read into"
            ready = self._await(awaited)  # or for a read in vain, which holds the slot that is needed
            awaited -= ready.keys()
            awaited |= self._start(waiting, ready)
            if ready:
                y = self._lanes.serve(call, ready, is_last=not awaited and not waiting)
                awaited |= self._start(waiting, ())
        return y

    def _start(self, waiting: deque[Expert], keep: Collection[Expert], at_once: int = 1 << 30) -> set[Expert]:
        """Start reads while slots can be had; returns which."""
        started = set[Expert]()
        if waiting:
            self._lanes.release()
        while waiting and len(started) < at_once and (slot := self._cache.claim(keep)) is not None:
            expert = waiting.popleft()
            self._submit(expert, slot)
            started.add(expert)
        return started

    def _guess(self, layer: int, x: torch.Tensor, keep: Collection[Expert]) -> None:
        """Start reads for the next layer, behind all others. `keep` is still to be computed."""
        if not self._is_decode or not self._trust.should_guess():
            return
        likely = [expert for expert in self._look_ahead(layer, x) if not self._lanes.holds(expert)]
        absent = deque(expert for expert in likely if self._cache.lookup(*expert) is None and expert not in self._reads)
        self._guessed = self._start(absent, {*keep, *likely})

    def _submit(self, expert: Expert, slot: int) -> None:
        where = self._experts.ranges[expert[0]][expert[1]]
        bases = run_bases(where) if len(where.runs) > 1 else _ONE_BASE
        read = self._reader.submit(where.runs, bases, self._arena.memory(slot), expert, self._landed)
        self._reads[expert] = read, slot

    def _await(self, awaited: Collection[Expert]) -> dict[Expert, int]:
        """Waits for the next read; the slots of those that landed by then and are awaited. Raises what went wrong with one."""
        begun = time.perf_counter()
        landed = [self._landed.get()]
        self._meter.stall(time.perf_counter() - begun)
        while not self._landed.empty():
            landed.append(self._landed.get())
        ready, failure = {}, None
        for one in landed:  # all of them, whatever one has met
            slot, error = self._land(one)
            if one[0] not in awaited:
                continue
            if error is None:
                ready[one[0]] = slot
            failure = failure or error
        if failure is not None:
            self._settle()  # what goes wrong with the others is no news, and must not meet the next pass
            raise failure
        return ready

    def _land(self, landed: Landed) -> tuple[int, Exception | None]:
        """The slot of an expert that is resident now; after a failed read or with unusable bytes the slot is free again."""
        expert, nbytes, error = landed
        _, slot = self._reads.pop(expert)
        self._meter.add(Link.DISK, nbytes, 0.0)
        if expert in self._unasked:
            self._unasked.remove(expert)
            self._meter.unasked(nbytes)
        try:
            if error is None:
                self._table.bind(slot, expert)
        except Exception as caught:  # of an expert that was only guessed it does not matter
            error = caught
        if error is not None:
            self._cache.abandon(slot)
        else:
            self._cache.commit(*expert, slot)
        return slot, error

    def _give_up(self, guessed: Iterable[Expert]) -> None:
        """Routing did not ask for these."""
        for expert in guessed:
            if expert not in self._reads:
                self._meter.unasked(self._experts.ranges[expert[0]][expert[1]].nbytes)
            elif not self._cancel(expert):
                self._unasked.add(expert)

    def _cancel(self, expert: Expert) -> bool:
        read, slot = self._reads[expert]
        if not read.cancel():
            return False
        del self._reads[expert]
        self._unasked.discard(expert)
        self._cache.abandon(slot)
        return True
