"""The miss path on simulated computers: `python -m tests.perf.miss_path [--json] [--plot FILE.svg]`.

A computer is a link and a CPU that share one RAM. What a split costs there is computed apart from what the policy believes: rates
drift from layer-step to layer-step, and the policy sees seconds alone. The best fixed split is found by trying, for each number of
misses, all ways to divide them.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from engine.card_rates import Lane, LaneCosts
from engine.experts.miss import MissPath

PAIRS = ((12.0, 48.0), (25.0, 57.0), (25.0, 63.0), (49.0, 54.0), (52.0, 178.0))  # link, CPU in GB/s
SIZES_MIB = (1.6, 12.8)
HAND_OFFS = (30e-6, 1e-3)
LAYERS, TOP_K = 48, 8
SETTLED = 64  # tokens after a change, by which the policy must have found its way
_LAUNCH = 12e-6  # of a gather
_OTHER_SECONDS = 45e-6  # of a layer, for attention and hits
_RAM_SHARE = 1.2  # what both lanes together get of the RAM, over what the CPU gets alone (offload-engines.md, section 8)


@dataclass(frozen=True)
class Computer:
    """GB/s and seconds. Neither lane shows what a layer-step with both loses, `hidden`, nor `per_computed` of each expert that the
    CPU computes."""

    link: float
    cpu: float
    hand_off: float
    expert_bytes: float
    miss_share: float = 0.4
    hidden: float = 0.0
    per_computed: float = 0.0

    def lanes(self) -> LaneCosts:
        """What a perfect bench with both lanes running would say."""
        return LaneCosts(
            Lane(_LAUNCH, self.expert_bytes / self.link / 1e9),
            Lane(self.hand_off, self.expert_bytes / self.cpu / 1e9),
            self.expert_bytes / (_RAM_SHARE * max(self.cpu, self.link)) / 1e9,
        )

    def ends(self, gathered: int, computed: int, noise: Sequence[float] = (1.0, 1.0)) -> tuple[float, float]:
        """When either lane ends, stepping through time: bytes flow at each moment's rates."""
        left = [gathered * self.expert_bytes, computed * self.expert_bytes]
        start, end, now = [_LAUNCH, self.hand_off], [0.0, 0.0], 0.0
        alone = [self.link * 1e9 / noise[0], self.cpu * 1e9 / noise[1]]
        share = min(1.0, _RAM_SHARE * max(alone) / sum(alone))
        while any(left):
            flowing = [lane for lane in (0, 1) if left[lane] and start[lane] <= now]
            rates = {lane: alone[lane] * (share if len(flowing) == 2 else 1.0) for lane in flowing}
            moments = [left[lane] / rates[lane] for lane in flowing]
            moments += [start[lane] - now for lane in (0, 1) if left[lane] and start[lane] > now]
            moment = min(moments)
            now += moment
            for lane in flowing:
                left[lane] -= rates[lane] * moment
                if left[lane] < 1e-3:
                    left[lane], end[lane] = 0.0, now
        return end[0], end[1]

    def step(self, gathered: int, computed: int) -> float:
        return max(self.ends(gathered, computed)) + self.unseen(gathered, computed)

    def unseen(self, gathered: int, computed: int) -> float:
        return (self.hidden if gathered and computed else 0.0) + computed * self.per_computed

    def fixed(self, choose: Callable[[int], int]) -> float:
        """A token's mean seconds where `choose` says how many of so many misses are gathered."""
        return LAYERS * (_OTHER_SECONDS + sum(p * self.step(choose(m), m - choose(m)) for m, p in self.miss_odds().items()))

    def best(self) -> float:
        table = {m: min(range(m + 1), key=lambda q: self.step(q, m - q)) for m in range(TOP_K + 1)}
        return self.fixed(table.__getitem__)

    def miss_odds(self) -> dict[int, float]:
        return _odds(self.miss_share)


@cache
def _odds(share: float) -> dict[int, float]:
    draws = random.Random(1)
    counts = Counter(sum(draws.random() < share for _ in range(TOP_K)) for _ in range(200_000))
    return {misses: count / 200_000 for misses, count in counts.items()}


class Run:
    """A policy at work on a computer that may change. `taken` has each token's seconds over those of the best fixed split."""

    def __init__(self, computer: Computer, seed: LaneCosts | None = None, chance: int = 0, noise: float = 0.08) -> None:
        self.computer, self.noise = computer, noise
        self.path = MissPath(seed or computer.lanes())
        self._draws = random.Random(chance)
        self.taken: list[float] = []
        self.simple: list[tuple[float, float]] = []  # all gathered, all computed, for the same misses
        self.best: list[float] = []

    def tokens(self, count: int) -> "Run":
        for _ in range(count):
            self._token()
        return self

    def _token(self) -> None:
        computer, draws = self.computer, self._draws
        seconds = best = gpu = cpu = 0.0
        for _ in range(LAYERS):
            misses = sum(draws.random() < computer.miss_share for _ in range(TOP_K))
            gathered = self.path.split(misses)
            noise = [draws.lognormvariate(0, self.noise) for _ in range(2)]
            other = _OTHER_SECONDS * draws.lognormvariate(0, self.noise)
            link, processor = computer.ends(gathered, misses - gathered, noise)
            self.path.saw(gathered, misses - gathered, link, processor)
            seconds += other + max(link, processor) + computer.unseen(gathered, misses - gathered)
            known = _known(computer, misses)
            best, gpu, cpu = best + other + min(known), gpu + other + known[-1], cpu + other + known[0]
        self.path.end_token(seconds)
        self.taken.append(seconds)
        self.best.append(best)
        self.simple.append((gpu, cpu))

    def over_best(self, since: int) -> float:
        """Time over that of the best fixed split for the same tokens, less 1."""
        return sum(self.taken[since:]) / sum(self.best[since:]) - 1

    def over_simple(self, since: int) -> float:
        """The same over the better of all-GPU and all-CPU."""
        gpu, cpu = (sum(pair[lane] for pair in self.simple[since:]) for lane in (0, 1))
        return sum(self.taken[since:]) / min(gpu, cpu) - 1


@cache
def _known(computer: Computer, misses: int) -> tuple[float, ...]:
    """Seconds of a layer-step by the number gathered."""
    return tuple(computer.step(gathered, misses - gathered) for gathered in range(misses + 1))


def computers() -> list[Computer]:
    return [Computer(link, cpu, hand_off, size * 2**20) for link, cpu in PAIRS for size in SIZES_MIB for hand_off in HAND_OFFS]


CHANGES: dict[str, Callable[[Computer], Computer]] = {
    "none": lambda computer: computer,
    "link half": lambda computer: replace(computer, link=computer.link / 2),
    "link double": lambda computer: replace(computer, link=computer.link * 2),
    "CPU third": lambda computer: replace(computer, cpu=computer.cpu / 3),
    "CPU double": lambda computer: replace(computer, cpu=computer.cpu * 2),
    "hand-off 1 ms": lambda computer: replace(computer, hand_off=1e-3),
    "hand-off 30 us": lambda computer: replace(computer, hand_off=30e-6),
}
"""What may happen to a computer between two tokens."""


def measure(computer: Computer, change: str, chance: int = 0, before: int = 200, after: int = 256) -> tuple[float, float]:
    """Over the best fixed split and over the better simple one, once settled after a change."""
    run = Run(computer, chance=chance).tokens(before)
    run.computer = CHANGES[change](computer)
    run.tokens(SETTLED + after)
    return run.over_best(before + SETTLED), run.over_simple(before + SETTLED)


def table() -> list[dict[str, Any]]:
    rows = []
    for computer in computers():
        for change in CHANGES:
            over_best, over_simple = measure(computer, change)
            rows.append(
                {
                    "link_gbps": computer.link, "cpu_gbps": computer.cpu, "hand_off_us": round(computer.hand_off * 1e6),
                    "expert_mib": round(computer.expert_bytes / 2**20, 1), "change": change,
                    "over_best": round(over_best, 4), "over_simple": round(over_simple, 4),
                }
            )  # fmt: skip
    return rows


STORY = (("link half", 300), ("none", 300), ("CPU third", 300), ("none", 300), ("hand-off 1 ms", 300))
"""What the drawing shows, and for how many tokens: each change is of the computer as it was at first."""


def story(computer: Computer, chance: int = 0) -> tuple[Run, list[int]]:
    """A long run through all that, and the tokens at which something changed."""
    run, moments = Run(computer, chance=chance).tokens(300), []
    for change, tokens in STORY:
        moments.append(len(run.taken))
        run.computer = CHANGES[change](computer)
        run.tokens(tokens)
    return run, moments


def draw(run: Run, moments: Sequence[int]) -> str:
    """An SVG of milliseconds per token: the policy, all-GPU, all-CPU and the best fixed split, as medians of nine."""
    width, height, margin = 960, 360, 48
    curves = {
        "all on the GPU": ("#c98500", [gpu for gpu, _ in run.simple]),
        "all on the CPU": ("#3987e5", [cpu for _, cpu in run.simple]),
        "best fixed split": ("#8a8f98", run.best),
        "Stoker": ("#d03b3b", run.taken),
    }
    smooth = {
        name: [median(values[max(0, i - 4) : i + 5]) * 1e3 for i in range(len(values))] for name, (_, values) in curves.items()
    }
    top, count = max(map(max, smooth.values())) * 1.05, len(run.taken)
    across, up = (width - 2 * margin) / count, (height - 2 * margin) / top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for moment, (change, _) in zip(moments, STORY, strict=True):
        x = margin + moment * across
        lines.append(f'<path d="M{x:.1f} {margin}V{height - margin}" stroke="#ccc"/>')
        label = "as at first" if change == "none" else change
        lines.append(f'<text x="{x + 4:.1f}" y="{margin - 6}" fill="#555">{label}</text>')
    for index, (name, values) in enumerate(smooth.items()):
        points = " ".join(f"{margin + i * across:.1f},{height - margin - value * up:.1f}" for i, value in enumerate(values))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{curves[name][0]}" stroke-width="1.5"/>')
        lines.append(f'<text x="{margin + index * 160}" y="{height - 12}" fill="{curves[name][0]}">{name}</text>')
    lines.append(f'<text x="8" y="16" fill="#555">ms per token, up to {top:.0f}; {count} tokens</text></svg>')
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.miss_path", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE.svg", type=Path, help="draw a run through several changes instead")
    options = parser.parse_args(arguments)
    if options.plot:
        options.plot.write_text(draw(*story(Computer(25.0, 63.0, 30e-6, 12.8 * 2**20))), encoding="utf-8")
        return 0
    rows = table()
    if options.json:
        print(json.dumps(rows))
        return 0
    print("link/CPU GB/s  expert   hand-off  change           over best  over the better of all-GPU, all-CPU")
    for row in rows:
        print(
            f"{row['link_gbps']:4.0f} / {row['cpu_gbps']:4.0f}  {row['expert_mib']:5.1f} MiB {row['hand_off_us']:5} us"
            f"  {row['change']:15} {row['over_best']:+8.1%}  {row['over_simple']:+8.1%}"
        )
    print(f"worst: {max(r['over_best'] for r in rows):+.1%} over best, {max(r['over_simple'] for r in rows):+.1%} over simple")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
