"""What a computer gives while it runs experts of one format, as measured once: values, and how they are kept. No measuring."""

from bisect import bisect_left
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import exp, inf, log
from typing import Any

from engine.meter import Link

Curve = tuple[tuple[float, float], ...]  # points, ascending


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s are bytes of weights or of the KV cache over seconds. All are of the engine's own readers, kernels and layers.

    `overlap` says how far reads hide behind computing, as the engine really does it: with a token's time for computing as one,
    from the drive's time alone to the time of both. Chance is in it: a token misses more in one layer than in the next.
    """

    ram_gbps: float  # every thread reading: the ceiling
    disk_gbps: float  # whole experts, several in flight, nothing else going on
    fresh_gbps: float  # the same into memory that was not used before, which the system has to find first
    expert_gbps: float  # one token's experts in one call
    dense_gbps: float  # matrices that every token needs
    kv_gbps: float  # attention of one token over a long context
    layer_seconds: float  # of a decoded token's layer, beyond its bytes: the calls, the hand-offs, the bookkeeping
    token_seconds: float  # of a decoded token, beyond its layers: sampling, embedding, the meter
    first_seconds: float  # of an expert that is met for the first time, to look at its parts
    overlap: Curve  # (drive / computing, both / computing), from (0, 1) on
    attention_gmacs: float  # multiply-adds per second of attention in batches, in 1e9
    experts_by_rows: Curve  # GB/s of weights where an expert gets so many rows in one call
    dense_by_tokens: Curve  # GB/s of weights where a prompt's batch has so many tokens
    expert_bytes: int = 0  # with which it was measured
    seconds: float = 0.0  # since 1970, when it was measured

    @property
    def ceilings(self) -> dict[Link, float]:
        return {Link.RAM: self.ram_gbps, Link.DISK: self.disk_gbps}

    @property
    def is_usable(self) -> bool:
        """Every figure is one that a computer can have, as a file may hold anything."""
        speeds = (self.ram_gbps, self.disk_gbps, self.fresh_gbps, self.expert_gbps, self.dense_gbps, self.kv_gbps,
                  self.attention_gmacs)  # fmt: skip
        fixed = (self.layer_seconds, self.token_seconds, self.first_seconds)
        return (
            all(is_speed(value) for value in speeds)
            and all(0 <= value < _LONGEST_SECONDS for value in fixed)
            and all(is_curve(curve, 1.0) for curve in (self.experts_by_rows, self.dense_by_tokens))
            and is_curve(self.overlap, 0.0)
            and is_time(self.seconds)
        )

    def together(self, compute_seconds: float, disk_seconds: float) -> float:
        """Seconds of a token that computes so long and whose reads take so long."""
        if compute_seconds <= 0 or len(self.overlap) < 2:
            return compute_seconds + disk_seconds
        x = disk_seconds / compute_seconds
        (low, below), (high, above) = next(
            (pair for pair in pairwise(self.overlap) if x <= pair[1][0]), (self.overlap[-2], self.overlap[-1])
        )
        if x > high:  # where the drive decides alone, each second of it is one
            return compute_seconds * above + (disk_seconds - high * compute_seconds)
        return compute_seconds * (below + (above - below) * (x - low) / (high - low))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> "Rates | None":
        """What `to_json` gave; None for anything else."""
        try:
            curves = {name: tuple((float(at), float(gbps)) for at, gbps in value[name]) for name in _CURVES}
            numbers = {name: float(value[name]) for name in cls.__dataclass_fields__ if name not in _CURVES}
            rates = cls(**{**numbers, **curves, "expert_bytes": int(numbers["expert_bytes"])})  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return rates if rates.is_usable else None


def is_speed(value: float) -> bool:
    """GB/s, or any figure of that size, which may stand in a division."""
    return 1e-4 < value < 1e6


def is_time(value: float) -> bool:
    """Seconds since 1970; 0 where nobody tells. What seems to be of the far future would never be measured again."""
    return 0 <= value < _FAR_FUTURE


def is_curve(curve: Curve, least: float) -> bool:
    """Ascending from that size on, and every value a speed or a figure of that size."""
    return (
        bool(curve)
        and all(least <= x < inf and is_speed(y) for x, y in curve)
        and all(early[0] < late[0] for early, late in pairwise(curve))
    )


_FAR_FUTURE = 1e10  # in the year 2286
_LONGEST_SECONDS = 10.0  # that a layer, a token or an expert may cost beyond its bytes
_CURVES = ("experts_by_rows", "dense_by_tokens", "overlap")


def at(curve: Curve, size: float) -> float:
    """GB/s of weights in a call of that size: between two measured sizes along the logarithms; beyond the last, time grows with
    size."""
    sizes = [one for one, _ in curve]
    if size <= sizes[0]:
        return curve[0][1]
    if size >= sizes[-1]:
        return curve[-1][1] * sizes[-1] / size
    index = bisect_left(sizes, size)
    (low, slow), (high, fast) = curve[index - 1], curve[index]
    share = log(size / low) / log(high / low)
    return exp(log(slow) + share * (log(fast) - log(slow)))
