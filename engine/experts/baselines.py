"""Policies that Stoker's is measured against, and the best that could be had. Integers only.

Each holds `num_slots` experts between layers and has other slots to read into, which favours it over the engine's cache: that
reads into slots of the same number.
"""

import heapq
from collections.abc import Sequence
from itertools import count

Expert = tuple[int, int]  # (layer, expert)


class GlobalLru:
    """The least recently used expert of all leaves."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._order: dict[Expert, None] = {}  # the oldest first

    def use(self, layer: int, experts: Sequence[int]) -> int:
        hits = sum((layer, expert) in self._order for expert in experts)
        for expert in experts:
            self._order.pop((layer, expert), None)
            self._order[layer, expert] = None
        while len(self._order) > self._num_slots:
            del self._order[next(iter(self._order))]
        return hits


class LayerLru:
    """Global LRU within each layer's equal share of the slots."""

    def __init__(self, layers: Sequence[int], num_slots: int) -> None:
        self._layers = {layer: GlobalLru(num_slots // len(layers)) for layer in layers}

    def use(self, layer: int, experts: Sequence[int]) -> int:
        return self._layers[layer].use(layer, experts)


class LayerLfu:
    """Within each layer's equal share, the expert least used since the beginning leaves, but none of the last token's."""

    def __init__(self, layers: Sequence[int], num_slots: int) -> None:
        self._share = num_slots // len(layers)
        self._held: dict[int, dict[int, int]] = {layer: {} for layer in layers}  # expert to time of its last use
        self._uses: dict[Expert, int] = {}
        self._time = count()

    def use(self, layer: int, experts: Sequence[int]) -> int:
        held, now = self._held[layer], next(self._time)
        hits = sum(expert in held for expert in experts)
        for expert in experts:
            self._uses[layer, expert] = self._uses.get((layer, expert), 0) + 1
        held.update(dict.fromkeys(experts, now))
        while len(held) > self._share:
            others = [expert for expert in held if expert not in experts]
            del held[min(others or held, key=lambda expert: (self._uses[layer, expert], held[expert]))]
        return hits


def belady_hits(uses: Sequence[tuple[int, Sequence[int]]], num_slots: int) -> int:
    """Hits if the experts used next were known, of `uses` as (layer, experts): no policy has more.

    Slots move freely between layers, and an expert whose next use is farther than all others' is not kept
    (L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966, with bypass).
    """
    next_use = _next_uses(uses)
    held: dict[Expert, int] = {}
    farthest: list[tuple[int, Expert]] = []  # a heap of (-next use, expert), some outdated
    hits = 0
    for (layer, experts), upcoming in zip(uses, next_use, strict=True):
        hits += sum((layer, expert) in held for expert in experts)
        for expert, following in zip(experts, upcoming, strict=True):
            held[layer, expert] = following
            heapq.heappush(farthest, (-following, (layer, expert)))
        while len(held) > num_slots:
            following, expert_of = heapq.heappop(farthest)
            if held.get(expert_of) == -following:
                del held[expert_of]
    return hits


def belady_hits_by_layer(uses: Sequence[tuple[int, Sequence[int]]], num_slots: int) -> int:
    """The same with an equal share of the slots for each layer."""
    by_layer: dict[int, list[tuple[int, Sequence[int]]]] = {}
    for layer, experts in uses:
        by_layer.setdefault(layer, []).append((layer, experts))
    return sum(belady_hits(own, num_slots // len(by_layer)) for own in by_layer.values())


def _next_uses(uses: Sequence[tuple[int, Sequence[int]]]) -> list[list[int]]:
    """For each use and expert, the index of the next use of the same expert, or one past the end."""
    following: dict[Expert, int] = {}
    result = []
    for index in range(len(uses) - 1, -1, -1):
        layer, experts = uses[index]
        result.append([following.get((layer, expert), len(uses)) for expert in experts])
        following.update(((layer, expert), index) for expert in experts)
    return result[::-1]
