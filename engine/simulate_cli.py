"""`stoker bench --simulate`: a model decoding with a graphics card that is made of ordinary memory and a paced link.

Placement, misses, lanes and meter are the real ones. The card computes with the CPU's kernels, so that its own speed is no
prediction of any card's; what the link does and what the miss path makes of it is.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from engine.accelerators import with_devices
from engine.card_rates import Lane
from engine.checkpoint.index import suggested_expert_ram
from engine.config import Wishes
from engine.errors import EngineError
from engine.experts.vram import Device
from engine.hardware.probe import probe
from engine.kernels.kernels import open_kernels
from engine.measure import knowledge_of
from engine.meter import Link, Traffic, merged
from engine.parts import open_parts
from engine.plan.plan import allows_cards, make_plan
from engine.plan.predict import Hits, decoded
from engine.session import Session
from engine.source import inspect
from engine.tiers.disk import DiskReader
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from engine.units import format_bytes, parse_bytes

_PROMPT, _TOKENS = 32, 96
_SLOWEST_GBPS = 1e-3  # at less, an expert takes seconds and a token minutes
_SETTLED = 32  # tokens that are not counted: the caches fill


@dataclass(frozen=True)
class Outcome:
    """Of the tokens after the first ones."""

    sentence: str
    records: list[Traffic]
    misses: dict[str, Any]  # what the miss path has learnt
    predicted_seconds: float  # of a token, by what was measured before, for the hit rates that it then had


def parse_simulation(text: str) -> Simulation:
    """'8GB,25,10': memory, GB/s of the link, µs of its latency; the last two may be left out. Raises `EngineError`."""
    parts = [part.strip() for part in text.split(",")]
    try:
        gbps, latency = (float(parts[index]) if len(parts) > index else 0.0 for index in (1, 2))
    except ValueError:
        gbps = latency = -1.0
    memory = parse_bytes(parts[0])
    if len(parts) > 3 or not (gbps == 0 or _SLOWEST_GBPS <= gbps < 1e5) or not 0 <= latency < 1e6 or not memory:
        hint = "Write memory, GB/s and microseconds, such as 8GB,25,10."
        raise EngineError("cli.simulation", f"{text!r} describes no card.", hint)
    return Simulation(memory, gbps, latency / 1e6)


def simulate(folder: Path, simulation: Simulation, wishes: Wishes) -> Outcome:
    """Decode tokens drawn at random. Raises `EngineError`."""
    source, kernels = inspect(folder), open_kernels()[0]
    card = Device(SimulatedAccelerator(simulation), kernels)
    machine = with_devices(probe(), [card])
    plan = make_plan(machine, source.footprint, wishes, suggested_expert_ram(folder))
    if not plan.vram_slots and not allows_cards(wishes.vram_limit):
        text = "No graphics memory may be taken, so the simulated card has nothing to do."
        raise EngineError("vram.none", text, "Allow some of it with --vram-limit, or leave that out.")
    if not plan.vram_slots:
        dense = format_bytes(plan.dense_bytes + plan.kv_bytes + plan.workspace_bytes)
        text = f"{format_bytes(simulation.vram_bytes)} do not hold the dense weights, the context and the workspace ({dense})."
        raise EngineError("vram.too_small", text, "Give the card more memory, or ask for a shorter context.")
    known = knowledge_of(source, None, kernels, card=card)
    if known.rates is None or known.card is None:
        raise EngineError(
            "bench.memory", f"Nothing could be measured: {known.unknown or known.unknown_card}.", "Close programs."
        )
    reader = DiskReader()
    try:
        session = Session(open_parts(source, plan, reader, kernels, devices=[card]), reader)
        draws = random.Random(0)
        tokens = [draws.randrange(source.footprint.vocab_size) for _ in range(_PROMPT + _TOKENS)]
        session.sync(tokens[:_PROMPT])
        records = [session.step(token)[1] for token in tokens[_PROMPT:]]
        settled = records[_SETTLED:]
        counts = merged(settled)
        lookups = max(1, counts.hits + counts.misses)
        hits, context = Hits(counts.vram_hits / lookups, counts.hits / lookups), len(tokens) - len(settled) // 2
        told = decoded(plan, source.footprint, known.rates, hits, context, known.card)
        return Outcome(plan.sentence, settled, session.misses(), told.seconds)
    finally:
        reader.close()


def as_json(outcome: Outcome) -> dict[str, Any]:
    total, count = merged(outcome.records), len(outcome.records)
    return {
        "tokens_per_second": 1 / median(record.seconds for record in outcome.records),
        "predicted_tokens_per_second": 1 / outcome.predicted_seconds,
        "hit_rates": _hit_rates(total),
        "bytes_per_token": {link.value: use.bytes / count for link, use in total.links.items()},
        "gbps": {link.value: use.gbps for link, use in total.links.items()},
        "misses": outcome.misses,
        "plan": outcome.sentence,
    }


def as_rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    """Label and text of each line."""
    told = as_json(outcome)
    speed, predicted = told["tokens_per_second"], told["predicted_tokens_per_second"]
    yield "Speed", f"{speed:.1f} tokens/s, predicted {predicted:.1f} (the card computes as fast as this CPU)"
    yield "Found in", ", ".join(f"{name} {share:.0%}" for name, share in told["hit_rates"].items())
    for link in Link:
        if link in (use := told["bytes_per_token"]):
            yield link.upper(), f"{format_bytes(use[link])} a token, at {told['gbps'][link]:.1f} GB/s while busy"
    lanes = outcome.misses["lanes"]
    for name, lane in (("Gathering", Lane(**lanes["link"])), ("The CPU", Lane(**lanes["cpu"]))):
        yield name, f"{lane.each * 1e6:.0f} µs an expert and {lane.fixed * 1e6:.0f} µs a step"
    yield "Misses", f"split: {outcome.misses['split']}"


def _hit_rates(total: Traffic) -> dict[str, float]:
    lookups = max(1, total.hits + total.misses)
    counts = {"VRAM": total.vram_hits, "RAM": total.hits - total.vram_hits, "disk": total.misses}
    return {name: count / lookups for name, count in counts.items()}
