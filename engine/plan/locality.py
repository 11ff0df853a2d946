"""How often an expert that a token asks for is in memory already, by the share of the experts that memory holds. Arithmetic.

One family of curves serves: hits = 1 - (1 - share)^power. With power 1 routing is uniform and independent; the higher it is,
the more a few experts serve most tokens, or those of the tokens just before. Replays of published traces are near it at 5 to
30 %: 0.38, 0.57, 0.76, 0.86 for Qwen3-30B-A3B are powers 9 to 6, and DeepSeek-V4's 0.57 at 48 % is 1.3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

_LEAST, _MOST = 1.0, 12.0
_LARGEST_RATE = 0.999
_SPREAD_BY_HEAT = 1.35


@dataclass(frozen=True, slots=True)
class Locality:
    """`low` to `high` is the interval of the power; `basis` says in words where it is from."""

    low: float
    likely: float
    high: float
    basis: str

    def rates(self, share: float) -> tuple[float, float, float]:
        """Hit rates, ascending, where memory holds that share of the experts."""
        low, likely, high = (1.0 - (1.0 - min(1.0, max(0.0, share))) ** power for power in (self.low, self.likely, self.high))
        return low, likely, high


PUBLISHED = Locality(1.3, 4.0, 7.0, "published traces of other models")
UNIFORM = Locality(1.0, 1.0, 1.0, "uniform routing")


def of_answers(seen: Sequence[tuple[float, float]]) -> Locality | None:
    """From measured (share in memory, hit rate) of this model's answers here, the latest last.

    Those with all experts in memory say nothing.
    """
    powers = [log(1 - min(rate, _LARGEST_RATE)) / log(1 - share) for share, rate in seen if 0 < share < 0.98 and rate < 1]
    powers = sorted(min(_MOST, max(0.5, power)) for power in powers[-9:])
    if not powers:
        return None
    middle = powers[len(powers) // 2]
    spread = 1.25 if len(powers) < 3 else 1.1
    basis = f"this model's last {len(powers)} answers here" if len(powers) > 1 else "this model's last answer here"
    return Locality(min(powers[0], middle / spread), middle, max(powers[-1], middle * spread), basis)


def of_heat(heat: Mapping[tuple[int, int], float], num_experts: int) -> Locality | None:
    """From how much each (layer, expert) was used of late, on average over layers and three shares.

    Few tokens make uneven heat of even routing too: what chance alone would give is taken off.
    """
    layers: dict[int, list[float]] = {}
    for (layer, _), value in heat.items():
        layers.setdefault(layer, []).append(value)
    powers = [power for values in layers.values() for power in _powers(values, num_experts)]
    if not powers:
        return None
    likely = max(_LEAST, sum(powers) / len(powers))
    return Locality(likely / _SPREAD_BY_HEAT, likely, likely * _SPREAD_BY_HEAT, "the experts that this model used last")


def _powers(values: list[float], num_experts: int) -> list[float]:
    heat = sorted(values + [0.0] * (num_experts - len(values)), reverse=True)
    total, mean = sum(heat), sum(heat) / num_experts
    if total <= 0:
        return []
    variance = sum((value - mean) ** 2 for value in heat) / num_experts
    by_chance = mean / 2  # of decayed counts, whose squares decay twice as fast
    kept = max(0.0, 1 - by_chance / variance) ** 0.5 if variance > 0 else 0.0
    popular = [mean + kept * (value - mean) for value in heat]
    found = []
    for share in (0.25, 0.5):
        count = round(share * num_experts)
        if 0 < count < num_experts:
            rate = min(_LARGEST_RATE, sum(popular[:count]) / total)
            found.append(min(_MOST, log(1 - rate) / log(1 - count / num_experts)))
    return found
