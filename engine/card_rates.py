"""What a graphics card gives while it runs experts of one format, and what either way costs to serve an expert that it does not
hold: gathered over its link, or computed in RAM by the CPU. Values alone; no measuring."""

from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from engine.meter import Link
from engine.rates import Curve, is_curve, is_speed, is_time


@dataclass(frozen=True, slots=True)
class Lane:
    """Seconds of one lane with nothing else going on: `fixed` for the hand-off, `each` for every expert."""

    fixed: float
    each: float

    def seconds(self, experts: int) -> float:
        return self.fixed + experts * self.each if experts else 0.0


@dataclass(frozen=True, slots=True)
class LaneCosts:
    """Both lanes for experts of one size. They share the RAM, which gives one expert in `ram_each` seconds at best."""

    link: Lane
    cpu: Lane
    ram_each: float = 0.0

    @property
    def slowdown(self) -> float:
        """By which either lane's work takes longer while both are at it."""
        return max(1.0, self.ram_each / self.link.each + self.ram_each / self.cpu.each)

    def ends(self, gathered: int, computed: int) -> tuple[float, float]:
        """When either lane is done with a layer-step's misses, counted from its start."""
        link, cpu = self.link, self.cpu
        if not gathered or not computed:
            return link.seconds(gathered), cpu.seconds(computed)
        first, second = (link.fixed, gathered * link.each), (cpu.fixed, computed * cpu.each)
        if first[0] <= second[0]:
            return _overlapped(*first, *second, self.slowdown)
        return _overlapped(*second, *first, self.slowdown)[::-1]

    def step(self, gathered: int, computed: int) -> float:
        """Seconds until both are done."""
        return max(self.ends(gathered, computed))

    def best(self, misses: int) -> int:
        """How many of them to gather, so that a layer-step is over soonest."""
        return min(range(misses, -1, -1), key=lambda count: self.step(count, misses - count))


def _overlapped(start: float, work: float, later_start: float, later_work: float, slowdown: float) -> tuple[float, float]:
    """When two pieces of work end that slow one another down while both go on."""
    left = work - (later_start - start)
    if left <= 0:
        return start + work, later_start + later_work
    both = later_start + min(left, later_work) * slowdown
    if left <= later_work:
        return both, both + later_work - left
    return both + left - later_work, both


@dataclass(frozen=True, slots=True)
class CardRates:
    """GB/s are bytes of weights or of the KV cache over seconds, all of the engine's own kernels and layers on the card.

    The names that `engine.rates.Rates` has too mean the same there for RAM and the CPU.
    """

    vram_gbps: float  # the card reading its own memory: the ceiling
    expert_gbps: float  # one token's experts in one call
    dense_gbps: float
    kv_gbps: float
    layer_seconds: float
    resident_layer_seconds: float  # where the card has all experts, and is left to itself
    token_seconds: float
    attention_gmacs: float
    experts_by_rows: Curve
    dense_by_tokens: Curve
    lanes: LaneCosts
    expert_bytes: int  # with which it was measured
    seconds: float  # since 1970, when it was measured

    def lanes_for(self, expert_bytes: int) -> LaneCosts:
        """For experts of another size than the measured ones: what each costs is its bytes'."""
        times, lanes = expert_bytes / self.expert_bytes, self.lanes
        link, cpu = (Lane(lane.fixed, lane.each * times) for lane in (lanes.link, lanes.cpu))
        return LaneCosts(link, cpu, lanes.ram_each * times)

    @property
    def ceilings(self) -> dict[Link, float]:
        return {Link.VRAM: self.vram_gbps, Link.PCIE: self.expert_bytes / self.lanes.link.each / 1e9}

    @property
    def is_usable(self) -> bool:
        """Every figure is one that a card can have, as a file may hold anything."""
        speeds = (self.vram_gbps, self.expert_gbps, self.dense_gbps, self.kv_gbps, self.attention_gmacs)
        fixed = (
            self.layer_seconds, self.resident_layer_seconds, self.token_seconds, self.lanes.link.fixed, self.lanes.cpu.fixed,
            self.lanes.ram_each,
        )  # fmt: skip
        each = (self.lanes.link.each, self.lanes.cpu.each)
        return (
            all(is_speed(value) for value in speeds)
            and all(isfinite(value) and 0 <= value < _LONGEST_SECONDS for value in fixed)
            and all(0 < value < _LONGEST_SECONDS for value in each)
            and self.expert_bytes > 0
            and is_curve(self.experts_by_rows, 1.0)
            and is_curve(self.dense_by_tokens, 1.0)
            and is_time(self.seconds)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "CardRates | None":
        """What `to_json` gave; None for anything else."""
        try:
            curves = {name: tuple((float(at), float(gbps)) for at, gbps in value[name]) for name in _CURVES}
            numbers = {name: float(value[name]) for name in cls.__dataclass_fields__ if name not in (*_CURVES, "lanes")}
            link, cpu = (Lane(*(float(value["lanes"][lane][part]) for part in ("fixed", "each"))) for lane in ("link", "cpu"))
            lanes = LaneCosts(link, cpu, float(value["lanes"]["ram_each"]))
            rates = cls(**{**numbers, **curves, "lanes": lanes, "expert_bytes": int(numbers["expert_bytes"])})  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return rates if rates.is_usable else None


_CURVES = ("experts_by_rows", "dense_by_tokens")
_LONGEST_SECONDS = 60.0
