"""Plays a routing trace against the engine's own cache, against other policies, and against the bound. Reads no weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.experts.baselines import GlobalLru, LayerLfu, LayerLru, belady_hits, belady_hits_by_layer
from engine.experts.cache import ExpertCache
from engine.experts.heat import hottest
from engine.experts.policy import Expert, Heat
from engine.experts.trace import Geometry, Routing
from engine.plan.footprint import guest_slots


class Contender(Protocol):
    def use(self, layer: int, experts: Sequence[int]) -> int:
        """A decoded token needs these experts; how many of them are resident. It may fetch and evict afterwards."""


@dataclass(frozen=True)
class Outcome:
    """`missed_bytes` is what a disk would have read."""

    lookups: int
    hits: int
    missed_bytes: int

    @property
    def hit_rate(self) -> float:
        return self.hits / self.lookups if self.lookups else 0.0


class CacheContender:
    """The engine's cache, asked as `ExpertRunner` asks it, with reads that land at once."""

    def __init__(self, cache: ExpertCache) -> None:
        self.cache = cache

    def use(self, layer: int, experts: Sequence[int]) -> int:
        cache = self.cache
        hits, misses = set[Expert](), []
        for expert in experts:
            if cache.lookup(layer, expert) is None:
                misses.append(expert)
            else:
                hits.add((layer, expert))
        if misses:
            self._load(layer, misses, hits)
        cache.touch(layer, experts)
        return len(hits)

    def _load(self, layer: int, misses: list[int], keep: set[Expert]) -> None:
        """As many at once as there are slots; then the hits are computed, and their slots may serve too."""
        waiting = misses
        while waiting:
            claimed = []
            for expert in waiting:
                slot = self.cache.claim(keep)
                if slot is None:
                    break
                claimed.append((expert, slot))
            for expert, slot in claimed:
                self.cache.commit(layer, expert, slot)
            assert claimed or keep, "no slot can be had"
            waiting, keep = waiting[len(claimed) :], set()


def heat_contender(geometry: Geometry, num_slots: int, warm: Mapping[Expert, float] | None = None) -> "CacheContender":
    """The engine's cache with its policy; with `warm` as after a start from saved heat."""
    policy = Heat(geometry.layers, geometry.num_experts)
    cache = ExpertCache(geometry.layers, [num_slots], policy, guest_slots(geometry.top_k))
    if warm:
        policy.warm(warm)
    for layer, expert in hottest(warm or {}, cache.member_slots):
        slot = cache.claim(())
        assert slot is not None, "an empty cache has slots"
        cache.commit(layer, expert, slot)
        cache.admit(layer, expert)
    return CacheContender(cache)


POLICIES: Mapping[str, Callable[[Geometry, int], Contender]] = {
    "heat": heat_contender,
    "global-lru": lambda geometry, num_slots: GlobalLru(num_slots),
    "layer-lru": lambda geometry, num_slots: LayerLru(geometry.layers, num_slots),
    "layer-lfu": lambda geometry, num_slots: LayerLfu(geometry.layers, num_slots),
}
"""`heat` is the engine's. It counts the slots that are read into; the others hold all of `num_slots` beside them."""


def replay(geometry: Geometry, routings: Sequence[Routing], contender: Contender) -> Outcome:
    """Each routing is one token in one layer, in the order in which a model computes them."""
    lookups = hits = missed_bytes = 0
    for routing in routings:
        found = contender.use(routing.layer, routing.experts)
        lookups += len(routing.experts)
        hits += found
        missed_bytes += (len(routing.experts) - found) * geometry.expert_bytes[routing.layer]
    return Outcome(lookups, hits, missed_bytes)


@dataclass(frozen=True)
class Bounds:
    """Belady's hit rates for one capacity: with slots that move between layers as the engine's do, and with equal shares."""

    free: float
    by_layer: float


def bounds(routings: Sequence[Routing], num_slots: int) -> Bounds:
    uses = [(routing.layer, routing.experts) for routing in routings]
    lookups = max(1, sum(len(experts) for _, experts in uses))
    return Bounds(belady_hits(uses, num_slots) / lookups, belady_hits_by_layer(uses, num_slots) / lookups)
