"""Computes the routed experts of one layer, wherever their bytes are. Knows slots and bytes, no architecture.

Hits are computed first while the misses are read; misses follow in the order in which they land. The sum over a token's
experts is always taken in routing order, so that placement cannot change even the rounding.
"""

import queue
import time
from collections import deque
from collections.abc import Sequence

import torch

from engine.checkpoint.experts import ExpertMap, ExpertNames, ExpertRange
from engine.experts.cache import ExpertCache
from engine.kernels.reference import Reference
from engine.meter import Link, Meter
from engine.tiers.arena import RamArena, SlotLayout
from engine.tiers.dense import view_bytes
from engine.tiers.disk import DiskReader

Assignment = tuple[torch.Tensor | slice, torch.Tensor | int]  # rows of x, and the expert's rank in each one's top-k
Landed = tuple[tuple[int, int], Exception | None]  # (expert, slot) and what went wrong


class ExpertRunner:
    """The RAM tier over the disk tier. One thread calls it; the reader's threads only fill claimed slots."""

    def __init__(
        self,
        experts: ExpertMap,
        names: ExpertNames,
        cache: ExpertCache,
        arena: RamArena,
        reader: DiskReader,
        kernels: Reference,
        meter: Meter,
    ) -> None:
        self._experts = experts
        self._names = names
        self._cache = cache
        self._arena = arena
        self._reader = reader
        self._kernels = kernels
        self._meter = meter
        self._layout = SlotLayout.for_expert(experts.sample)
        self._landed: queue.SimpleQueue[Landed] = queue.SimpleQueue()

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x [T, H], ids [T, k], weights [T, k] to [T, H]. Raises `EngineError`."""
        groups = _group(ids)
        outputs = x.new_empty(*ids.shape, x.shape[1])  # [T, k, H]
        hits = [expert for expert in groups if self._cache.lookup(layer, expert) is not None]
        misses = [expert for expert in groups if self._cache.lookup(layer, expert) is None]
        self._meter.lookups(len(hits), len(misses))
        self._run_all(layer, x, groups, hits, misses, outputs)
        self._cache.touch(layer, list(groups))
        return torch.einsum("tkh,tk->th", outputs, weights)  # [T, H]

    def _run_all(
        self,
        layer: int,
        x: torch.Tensor,
        groups: dict[int, Assignment],
        hits: Sequence[int],
        misses: Sequence[int],
        outputs: torch.Tensor,
    ) -> None:
        """Read ahead into every slot that nothing still to be computed occupies; a prompt may touch more experts than fit."""
        waiting = deque(misses)
        keep = set(hits)  # resident and not computed yet: must not be evicted
        in_flight = 0
        try:
            in_flight += self._read_ahead(layer, waiting, keep)
            for expert in hits:
                self._compute(layer, expert, x, groups[expert], outputs)
                keep.discard(expert)
                in_flight += self._read_ahead(layer, waiting, keep)
            while in_flight:
                landed = self._await_one()
                in_flight -= 1
                expert = self._settle(layer, landed)
                self._compute(layer, expert, x, groups[expert], outputs)
                in_flight += self._read_ahead(layer, waiting, keep)
        finally:
            for _ in range(in_flight):  # only after an error: no read may outlive this call
                (_, slot), _ = self._landed.get()
                self._cache.abandon(layer, slot)
        assert not waiting, "the plan gives every layer at least top-k slots"

    def _read_ahead(self, layer: int, waiting: deque[int], keep: set[int]) -> int:
        """Start reads while slots can be had; returns how many."""
        started = 0
        while waiting:
            slot = self._cache.claim(layer, keep)
            if slot is None:
                break
            expert = waiting.popleft()
            runs = self._experts.ranges[layer][expert].runs
            self._reader.submit(runs, self._layout.run_base, self._arena.memory(slot), (expert, slot), self._landed)
            started += 1
        return started

    def _await_one(self) -> Landed:
        begun = time.perf_counter()
        landed = self._landed.get()
        self._meter.stall(time.perf_counter() - begun)
        return landed

    def _settle(self, layer: int, landed: Landed) -> int:
        """The expert that landed, now resident. A failed read frees its slot and raises."""
        (expert, slot), error = landed
        if error is not None:
            self._cache.abandon(layer, slot)
            raise error
        self._meter.add(Link.DISK, self._experts.expert_bytes, 0.0)
        self._cache.commit(layer, expert, slot)
        return expert

    def _compute(self, layer: int, expert: int, x: torch.Tensor, rows: Assignment, outputs: torch.Tensor) -> None:
        with self._meter.timed(Link.RAM, self._experts.expert_bytes):
            slot = self._cache.lookup(layer, expert)
            assert slot is not None, f"expert {expert} of layer {layer} was evicted before use"
            where = self._experts.ranges[layer][expert]
            gate, up, down = bind(where, self._names, self._layout, self._arena.tensor(slot))
            tokens, ranks = rows
            outputs[tokens, ranks] = self._kernels.swiglu(x[tokens], gate, up, down)


def bind(where: ExpertRange, names: ExpertNames, layout: SlotLayout, memory: torch.Tensor) -> list[torch.Tensor]:
    """Gate, up and down of the expert whose bytes lie in `memory` (uint8 [stride]), in place."""
    parts = {part.matrix: part for part in where.parts}
    order = [parts[matrix] for matrix in names.separate or ()]
    return [view_bytes(memory, layout.start(where, part), part.dtype, part.shape) for part in order]


def _group(ids: torch.Tensor) -> dict[int, Assignment]:
    """Rows and ranks by expert: ids [T, k]."""
    top_k = ids.shape[1]
    if len(ids) == 1:
        return {expert: (slice(0, 1), rank) for rank, expert in enumerate(ids[0].tolist())}
    flat = ids.reshape(-1)
    order = torch.argsort(flat, stable=True)
    experts, counts = torch.unique_consecutive(flat[order], return_counts=True)
    pieces = zip(experts.tolist(), torch.split(order, counts.tolist()), strict=True)
    return {expert: (index // top_k, index % top_k) for expert, index in pieces}
