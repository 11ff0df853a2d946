"""`stoker trace`: records routing and plays it against cache policies. A thin front end, like `engine.cli`."""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.experts.replay import POLICIES, Bounds, Outcome, bounds, replay
from engine.experts.trace import Geometry, Trace, read_trace
from engine.units import format_bytes, parse_bytes
from engine.wishes_cli import add_wishes

CAPACITIES = ("5%", "10%", "20%", "30%", "50%")


@dataclass(frozen=True)
class Row:
    """One policy at one capacity. `belady` lets slots move between layers as the engine's do, `belady_by_layer` does not."""

    file: str
    capacity: str
    slots: int
    policy: str
    hit_rate: float
    belady: float
    belady_by_layer: float
    bytes: int  # missed over all tokens
    bytes_per_token: int


def add_trace(verbs: Any, run_record: Callable[[argparse.Namespace], int], make_bar: Any) -> None:
    """The command `trace` among the command line's others; `run_record` loads a model, which this module does not know, and
    shows that by what `make_bar` gives."""
    text = "record routing, and play it against cache policies"
    trace = verbs.add_parser("trace", help=text, description=f"{text.capitalize()}.")
    verbs = trace.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "play a trace's decoded tokens against cache policies, from an empty cache"
    play = verbs.add_parser("replay", help=text, description=f"{text.capitalize()}.")
    play.add_argument("files", nargs="+", type=Path, metavar="FILE", help="routing traces (CSV)")
    play.add_argument(
        "--capacity",
        action="append",
        metavar="AMOUNT",
        help="RAM for experts: a share of them such as 20%%, or 3GB; may be repeated (5, 10, 20, 30, 50%%)",
    )
    play.add_argument("--policy", choices=tuple(POLICIES), help="only this one (heat is the engine's)")
    play.add_argument("--json", action="store_true", help="print JSON instead of a table; with one --capacity one object")
    play.set_defaults(run=run_replay)

    text = "answer a prompt and write which experts each layer chose for each token"
    record = verbs.add_parser("record", help=text, description=f"{text.capitalize()}.")
    record.add_argument("file", type=Path, metavar="FILE", help="where the trace goes (CSV)")
    record.add_argument("prompt", nargs="+", help="one or more questions, each a request of its own")
    record.add_argument("--model", help="name of a model, or its folder (demo)")
    add_wishes(record)
    record.add_argument("--max-tokens", type=int, default=256, metavar="N", help="length of each answer (256)")
    record.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    record.set_defaults(run=run_record, make_bar=make_bar)


def run_replay(options: argparse.Namespace) -> int:
    """Prints the table. Raises `EngineError` for a file or amount that cannot be read."""
    capacities = options.capacity or list(CAPACITIES)
    is_one = options.json and len(options.files) == len(capacities) == 1
    policies = [options.policy] if options.policy else ["heat"] if is_one else list(POLICIES)
    rows = [row for file in options.files for row in rows_of(file, capacities, policies)]
    if options.json:
        found = [asdict(row) for row in rows]
        print(json.dumps(found[0] if is_one else {"rows": found}))
    else:
        print("\n".join(_table(rows, policies)))
    return 0


def rows_of(file: Path, capacities: list[str], policies: list[str]) -> Iterator[Row]:
    trace = read_trace(file)
    decoded = trace.decoded()
    if not decoded:
        raise EngineError("trace.format", f"{file.name} has no decoded token, only a prompt.", "Record an answer too.")
    tokens = len({(routing.request, routing.step) for routing in decoded})
    for capacity in capacities:
        slots = _slots(trace, capacity)
        best = bounds(decoded, slots)
        for policy in policies:
            outcome = replay(trace.geometry, decoded, POLICIES[policy](trace.geometry, slots))
            yield _row(file.name, capacity, slots, policy, outcome, best, tokens)


def _row(file: str, capacity: str, slots: int, policy: str, outcome: Outcome, best: Bounds, tokens: int) -> Row:
    rates = round(outcome.hit_rate, 4), round(best.free, 4), round(best.by_layer, 4)
    return Row(file, capacity, slots, policy, *rates, outcome.missed_bytes, outcome.missed_bytes // tokens)


def _slots(trace: Trace, capacity: str) -> int:
    """Experts that fit: a share of all, or bytes over the largest expert's, since a slot holds any."""
    geometry = trace.geometry
    total = len(geometry.layers) * geometry.num_experts
    if capacity.strip().endswith("%"):
        slots = parse_bytes(capacity, whole=total)
    else:
        slots = min(total, parse_bytes(capacity) // max(1, *geometry.expert_bytes.values()))
    least = _least_slots(geometry)
    if slots < least:
        text = f"{capacity} holds {slots} of {total} experts, and the least to compare policies on is {least}."
        raise EngineError("trace.capacity", text, "Give a larger --capacity.")
    return slots


def _least_slots(geometry: Geometry) -> int:
    """One in each layer, and a token's top-k."""
    return max(len(geometry.layers), geometry.top_k)


def _table(rows: list[Row], policies: list[str]) -> Iterator[str]:
    """Per file and capacity the hit rates side by side."""
    yield (
        f"{'trace':24} {'capacity':>8} " + " ".join(f"{policy:>10}" for policy in policies) + f" {'Belady':>8} {'by layer':>8}"
        f"   missed per token ({policies[0]})"
    )
    for first in range(0, len(rows), len(policies)):
        group = rows[first : first + len(policies)]
        row = group[0]
        rates = " ".join(f"{one.hit_rate:10.3f}" for one in group)
        yield (
            f"{row.file[:24]:24} {row.capacity:>8} {rates} {row.belady:8.3f} {row.belady_by_layer:8.3f}"
            f"   {format_bytes(row.bytes_per_token)}"
        )
    yield "Decoded tokens alone, from an empty cache. Belady: slots move between layers, as the engine's do; by layer: not."
