"""What the cache policy's constants are worth: hit rates from an empty cache, decode alone.

`python -m tests.perf.replay TRACE.csv.. [--half-life 16 20 24] [--bonus 6] [--guests 8]`: one line for each combination, over the given
traces and a made-up one with topic switches, at 10, 20 and 30 % capacity each. `stoker trace replay` compares policies.
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from engine.experts.cache import ExpertCache
from engine.experts.policy import HALF_LIFE_TOKENS, LAST_TOKEN_BONUS, Heat
from engine.experts.replay import CacheContender, replay
from engine.experts.trace import Geometry, Routing, read_trace
from tests.helpers.routes import geometry, topics

CAPACITIES = (0.1, 0.2, 0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--half-life", nargs="+", type=float, default=[HALF_LIFE_TOKENS])
    parser.add_argument("--bonus", nargs="+", type=float, default=[LAST_TOKEN_BONUS])
    parser.add_argument("--guests", nargs="+", type=int, default=[16])
    options = parser.parse_args()
    subjects: dict[str, tuple[Geometry, Sequence[Routing]]] = {"topics": (geometry(12, 6), topics(12, 1600))}
    for file in options.files:
        trace = read_trace(file)
        subjects[file.name.split(".")[0]] = trace.geometry, trace.decoded()
    print("half-life  bonus  guests  " + "  ".join(f"{name:>17}" for name in subjects) + "   mean")
    for half_life, bonus, guests in product(options.half_life, options.bonus, options.guests):
        rates = [list(_rates(*subject, half_life, bonus, guests)) for subject in subjects.values()]
        mean = sum(map(sum, rates)) / len(CAPACITIES) / len(rates)
        shown = "  ".join(" ".join(f"{rate:.3f}" for rate in row) for row in rates)
        print(f"{half_life:9.0f}  {bonus:5.1f}  {guests:6}  {shown}  {mean:.3f}")


def _rates(shape: Geometry, routings: Sequence[Routing], half_life: float, bonus: float, guests: int) -> Iterator[float]:
    for capacity in CAPACITIES:
        num_slots = int(len(shape.layers) * shape.num_experts * capacity)
        policy = Heat(shape.layers, shape.num_experts, half_life, bonus)
        cache = ExpertCache(shape.layers, [num_slots], policy, guests)
        yield replay(shape, routings, CacheContender(cache)).hit_rate


if __name__ == "__main__":
    main()
