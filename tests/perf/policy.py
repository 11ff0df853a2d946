"""What the cache costs the hot path: microseconds per layer and token, with a trace's geometry.

`python -m tests.perf.policy [--layers 48] [--experts 128] [--top-k 8] [--json]`. A layer whose experts all hit, and each miss on top.
"""

import argparse
import json
import random
import time

from engine.experts.cache import ExpertCache
from engine.experts.policy import Heat
from engine.experts.replay import CacheContender
from engine.plan.footprint import guest_slots


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    geometry = options.layers, options.experts, options.top_k
    results = {
        f"{share:.0%}": dict(zip(("all_hit_us", "miss_us"), _microseconds(*geometry, share, options.tokens), strict=True))
        for share in (0.1, 0.25, 0.5, 0.75)
    }
    if options.json:
        print(json.dumps(results))
        return
    for share, costs in results.items():
        print(f"{share:>4} capacity: {costs['all_hit_us']:5.1f} µs a layer of hits, {costs['miss_us']:5.1f} µs for each miss")


def _microseconds(layers: int, experts: int, top_k: int, share: float, tokens: int) -> tuple[float, float]:
    """(one layer, all hits; each miss more than that), routing uniform. The same look-ups as the runner's."""
    rng = random.Random(0)
    names = range(layers)
    contender = CacheContender(ExpertCache(names, [int(experts * share)] * layers, Heat(names, experts), guest_slots(8)))
    for _ in range(60):
        for layer in names:
            contender.use(layer, rng.sample(range(experts), top_k))
    token = [rng.sample(range(experts), top_k) for _ in names]
    for layer in names:
        contender.use(layer, token[layer])
    hit_seconds = min(_seconds(contender, [token]) for _ in range(tokens)) / layers
    routed = [[rng.sample(range(experts), top_k) for _ in names] for _ in range(tokens)]
    misses = sum(
        top_k - contender.use(layer, token[layer]) for token in routed for layer in names
    )  # how many there are in such traffic
    seconds = min(_seconds(contender, routed) for _ in range(3))
    return hit_seconds * 1e6, (seconds - hit_seconds * layers * tokens) / misses * 1e6


def _seconds(contender: CacheContender, routed: list[list[list[int]]]) -> float:
    begun = time.perf_counter()
    for token in routed:
        for layer, wanted in enumerate(token):
            contender.use(layer, wanted)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
