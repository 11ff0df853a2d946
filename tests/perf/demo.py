"""The README's table: the demo model at several budgets of expert memory, predicted beside measured.

`python -m tests.perf.demo [--model demo] [--tokens 96] [--rounds 3] [--json]`. Budgets are run in turn, round by round; medians.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass

from engine.config import Sampling, Wishes
from engine.engine import Engine
from engine.meter import Link, Phase
from engine.protocol import ChatMessage
from engine.store.library import find_model, models_folder
from engine.units import format_bytes

BUDGETS = ("100%", "50%", "25%")
QUESTION = [ChatMessage("user", "Write a long story about a lighthouse keeper and the sea.")]


@dataclass(frozen=True)
class Row:
    budget: str
    tokens_per_second: float
    predicted_low: float
    predicted_high: float
    first_token_seconds: float
    ram_bytes: float  # per decoded token
    disk_bytes: float
    hit_rate: float
    disk_gbps: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: dict[str, list[Row]] = {budget: [] for budget in BUDGETS}
    for _ in range(options.rounds):
        for budget in BUDGETS:
            rows[budget].append(_measure(options.model, budget, options.tokens))
    table = [_median(rows[budget]) for budget in BUDGETS]
    if options.json:
        print(json.dumps([asdict(row) for row in table]))
        return
    print("| experts in RAM | tokens/s | predicted | first token | RAM per token | disk per token | found in RAM | disk |")
    print("|---|---|---|---|---|---|---|---|")
    for row in table:
        print(
            f"| {row.budget} | {row.tokens_per_second:.1f} | {row.predicted_low:.0f}–{row.predicted_high:.0f} "
            f"| {row.first_token_seconds:.2f} s | {format_bytes(row.ram_bytes)} | {format_bytes(row.disk_bytes)} "
            f"| {row.hit_rate:.0%} | {row.disk_gbps:.1f} GB/s |"
        )


def _measure(model: str, budget: str, count: int) -> Row:
    engine = Engine(find_model(model, models_folder()), Wishes(expert_ram=budget))
    sampling = Sampling(max_tokens=count, temperature=0)
    records = [token.traffic for token in engine.generate(engine.encode(QUESTION), sampling)]
    low, high = engine.plan.predicted_tokens_per_second or (0.0, 0.0)
    engine.close()
    steps = [record for record in records if record.phase is Phase.DECODE][8:]  # the first ones fill the slots

    def moved(link: Link) -> tuple[int, float]:
        uses = [record.links[link] for record in steps if link in record.links]
        return sum(use.bytes for use in uses), sum(use.seconds for use in uses)

    disk_bytes, disk_seconds = moved(Link.DISK)
    return Row(
        budget=budget,
        tokens_per_second=1 / statistics.median(record.seconds for record in steps),
        predicted_low=low,
        predicted_high=high,
        first_token_seconds=records[0].seconds,
        ram_bytes=moved(Link.RAM)[0] / len(steps),
        disk_bytes=disk_bytes / len(steps),
        hit_rate=sum(record.hits for record in steps) / sum(record.hits + record.misses for record in steps),
        disk_gbps=disk_bytes / disk_seconds / 1e9 if disk_seconds else 0.0,
    )


def _median(rows: list[Row]) -> Row:
    names = [name for name in Row.__dataclass_fields__ if name != "budget"]
    return Row(rows[0].budget, **{name: statistics.median(getattr(row, name) for row in rows) for name in names})


if __name__ == "__main__":
    main()
