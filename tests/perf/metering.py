"""What metering costs: decode with the meter and with one that counts nothing, in turn, on the same loaded model.

`python -m tests.perf.metering --model demo [--rounds 7] [--tokens 24] [--json]`; prints the medians and the share of decode time.
Two figures: the pairwise difference of the two runs, and the time of one token's meter calls alone, which no noise hides.
"""

import argparse
import json
import statistics
import time
from contextlib import nullcontext
from typing import Any

from engine.config import Sampling, Wishes
from engine.engine import Engine
from engine.meter import Link, Meter, Phase, Traffic
from engine.protocol import ChatMessage
from engine.store.library import find_model, models_folder


class Uncounted(Meter):
    """Does nothing at every call that decode makes."""

    def begin(self, phase: Phase, tokens: int = 1) -> None:
        pass

    def add(self, link: Link, count: int, seconds: float) -> None:
        pass

    def lookups(self, hits: int, misses: int) -> None:
        pass

    def timed(self, link: Link, count: int) -> Any:
        return nullcontext()

    def end(self) -> Traffic:
        return Traffic(Phase.DECODE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = Engine(find_model(options.model, models_folder()), Wishes(expert_ram="100%"))
    prompt = engine.encode([ChatMessage("user", "Tell me about the sea.")])
    meters = {"counted": Meter(), "uncounted": Uncounted()}
    seconds: dict[str, list[float]] = {name: [] for name in meters}
    for number in range(options.rounds):
        for name, meter in sorted(meters.items(), reverse=number % 2 == 1):  # whoever comes second must not always gain
            parts = engine.session._parts
            parts.meter = parts.experts._meter = parts.experts._lanes._meter = meter  # type: ignore[attr-defined]
            seconds[name].append(_decode_seconds(engine, prompt, options.tokens))
    differences = [a / b - 1 for a, b in zip(seconds["counted"], seconds["uncounted"], strict=True)]
    median = {name: statistics.median(values) for name, values in seconds.items()}
    share = _calls_seconds(engine.plan.num_layers, engine.plan.top_k) / median["uncounted"]
    result = {
        "token_ms_counted": median["counted"] * 1e3,
        "token_ms_uncounted": median["uncounted"] * 1e3,
        "pairwise_difference": statistics.median(differences),
        "share_of_calls": share,
    }
    print(json.dumps(result) if options.json else "\n".join(f"{key:22} {value:.5f}" for key, value in result.items()))
    engine.close()


def _decode_seconds(engine: Engine, prompt: list[int], count: int) -> float:
    """Median seconds per token, prefill left out."""
    times: list[float] = []
    last = time.perf_counter()
    for _ in engine.generate(prompt, Sampling(max_tokens=count, temperature=0)):
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return statistics.median(times[2:])


def _calls_seconds(layers: int, top_k: int, repeats: int = 300) -> float:
    """Seconds of the meter calls that one decode token makes."""
    meter = Meter()
    begun = time.perf_counter()
    for _ in range(repeats):
        meter.begin(Phase.DECODE)
        for _ in range(layers):
            meter.lookups(top_k, 0)
            for _ in range(top_k):
                with meter.timed(Link.RAM, 1):
                    pass
        meter.add(Link.RAM, 1, 0.1)
        meter.end()
    return (time.perf_counter() - begun) / repeats


if __name__ == "__main__":
    main()
