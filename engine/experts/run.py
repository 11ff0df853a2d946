"""Computes the routed experts of one layer, wherever their bytes are. Knows slots and bytes, no architecture.

Hits are computed first while the misses are read; misses follow in the order in which they land. The sum over a token's
experts is always taken in routing order, so that placement cannot change even the rounding.
"""

import queue
import time
from collections import deque

import torch

from engine.checkpoint.experts import ExpertMap
from engine.experts.bind import ExpertBinder
from engine.experts.cache import ExpertCache
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import ExpertMath
from engine.meter import Link, Meter
from engine.tiers.arena import RamArena, run_bases
from engine.tiers.disk import DiskReader

Landed = tuple[tuple[int, int], int, Exception | None]  # (expert, slot), bytes read, what went wrong


class ExpertRunner:
    """The RAM tier over the disk tier. One thread calls it; the reader's threads only fill claimed slots."""

    def __init__(
        self,
        experts: ExpertMap,
        binder: ExpertBinder,
        math: ExpertMath,
        cache: ExpertCache,
        arena: RamArena,
        reader: DiskReader,
        kernels: Kernels,
        meter: Meter,
    ) -> None:
        self._experts, self._binder, self._math = experts, binder, math
        self._cache, self._arena, self._reader = cache, arena, reader
        self._kernels, self._meter = kernels, meter
        self._expert_bytes = experts.expert_bytes
        self._table = ExpertTable(arena.num_slots)
        self._landed: queue.SimpleQueue[Landed] = queue.SimpleQueue()

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x [T, H], ids [T, k], weights [T, k] to [T, H]. Raises `EngineError`."""
        wanted = list(dict.fromkeys(ids.flatten().tolist()))
        hits = {expert: slot for expert in wanted if (slot := self._cache.lookup(layer, expert)) is not None}
        misses = [expert for expert in wanted if expert not in hits]
        self._meter.lookups(len(hits), len(misses))
        call = _Call(layer, x, ids, weights)
        y = self._compute_as_they_land(call, hits, deque(misses)) if misses else self._compute(call, hits, is_last=True)
        self._cache.touch(layer, wanted)
        assert y is not None, "the last call sums"
        return y

    def _compute_as_they_land(self, call: "_Call", hits: dict[int, int], waiting: deque[int]) -> torch.Tensor | None:
        """Read ahead into every slot that nothing still to be computed occupies; a prompt may touch more experts than fit."""
        call.outputs = call.x.new_empty(*call.ids.shape, call.x.shape[1])  # [T, k, H]
        y, in_flight = None, self._read_ahead(call.layer, waiting, hits)
        try:
            if hits:
                self._compute(call, hits)
                in_flight += self._read_ahead(call.layer, waiting, ())
            while in_flight:
                landed = self._await_one()
                in_flight -= 1
                expert, slot = self._settle(call.layer, landed)
                y = self._compute(call, {expert: slot}, is_last=not in_flight and not waiting)
                in_flight += self._read_ahead(call.layer, waiting, ())
        finally:
            for _ in range(in_flight):  # only after an error: no read may outlive this call
                (_, slot), _, _ = self._landed.get()
                self._cache.abandon(call.layer, slot)
        assert not waiting, "the plan gives every layer at least top-k slots"
        return y

    def _read_ahead(self, layer: int, waiting: deque[int], keep: dict[int, int] | tuple[()]) -> int:
        """Start reads while slots can be had; returns how many."""
        started = 0
        while waiting:
            slot = self._cache.claim(layer, keep)
            if slot is None:
                break
            expert = waiting.popleft()
            where = self._experts.ranges[layer][expert]
            self._reader.submit(where.runs, run_bases(where), self._arena.memory(slot), (expert, slot), self._landed)
            started += 1
        return started

    def _await_one(self) -> Landed:
        begun = time.perf_counter()
        landed = self._landed.get()
        self._meter.stall(time.perf_counter() - begun)
        return landed

    def _settle(self, layer: int, landed: Landed) -> tuple[int, int]:
        """The expert that landed and its slot, now resident. A failed read frees its slot and raises."""
        (expert, slot), nbytes, error = landed
        if error is not None:
            self._cache.abandon(layer, slot)
            raise error
        self._meter.add(Link.DISK, nbytes, 0.0)
        self._table.set(slot, *self._binder.bind(layer, expert, self._arena.tensor(slot)))
        self._cache.commit(layer, expert, slot)
        return expert, slot

    def _compute(self, call: "_Call", slots: dict[int, int], *, is_last: bool = False) -> torch.Tensor | None:
        """These experts' rows of the outputs; the weighted sum of all of them with the last call."""
        with self._meter.timed(Link.RAM, len(slots) * self._expert_bytes):
            return self._kernels.moe(
                self._table,
                call.x,
                call.slots_of(slots),
                call.outputs,
                call.weights if is_last else None,
                activation=self._math.activation,
                alpha=self._math.alpha,
                limit=self._math.limit,
            )


class _Call:
    """One layer's work. `outputs` [T, k, H] is needed only when it is done in several calls."""

    def __init__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        self.layer, self.x, self.ids, self.weights = layer, x, ids, weights
        self.outputs: torch.Tensor | None = None

    def slots_of(self, slots: dict[int, int]) -> torch.Tensor:
        """int32 [T, k]: the slot of each routed expert, -1 for those that are not of `slots`."""
        if len(self.ids) == 1:
            return torch.tensor([[slots.get(expert, -1) for expert in self.ids[0].tolist()]], dtype=torch.int32)
        by_expert = torch.full((int(self.ids.max()) + 1,), -1, dtype=torch.int32)
        by_expert[torch.tensor(list(slots))] = torch.tensor(list(slots.values()), dtype=torch.int32)
        return by_expert[self.ids]
