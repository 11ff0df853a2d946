"""`stoker plan` and `stoker bench`: where a model would live here and how fast, and what this computer gives."""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.card_rates import CardRates
from engine.checkpoint.index import suggested_expert_ram
from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Gpu, GpuKind, Machine
from engine.hardware.probe import probe, probe_all
from engine.knowledge import Notebook, main_card
from engine.meter import Link
from engine.plan.forecast import fit_of, forecast
from engine.protocol import Plan, Tier
from engine.rates import Rates
from engine.store.library import data_folder, find_model, models_folder
from engine.store_cli import MakeBar
from engine.units import MB, TB, format_bytes, parse_bytes
from engine.wishes_cli import add_wishes, check_amounts, wishes_of

Run = Callable[[argparse.Namespace], int]
LINK_NAMES = {Link.VRAM: "VRAM", Link.PCIE: "PCIe", Link.RAM: "RAM", Link.DISK: "disk"}
_STAGE = "Measuring this computer"
_BENCH_SECONDS = 13.5  # with the start of the tensor library; another second is Python's and the terminal's
_LEAST_MEMORY, _MOST_MEMORY = 100 * MB, 1000 * TB


def add_plan(verbs: Any, add_verb: Callable[[Any, str, str, Run], argparse.ArgumentParser], make_bar: MakeBar) -> None:
    text = "say where a model would live on this computer, how fast, and why"
    plan = add_verb(verbs, "plan", text, _saying_so(_plan, "The plan"))
    plan.add_argument("folder", nargs="?", help="model name or folder, or maker/model on the Hugging Face Hub (demo)")
    plan.add_argument("--model", help="the same")
    add_wishes(plan, "; to suppose a card, give --vram")
    plan.add_argument("--ram", metavar="AMOUNT", help="as if so much memory were free")
    text = "suppose one graphics card with so much free memory; to limit what may be taken of it, give --vram-limit"
    plan.add_argument("--vram", metavar="AMOUNT", help=text)
    plan.set_defaults(make_bar=make_bar)

    text = "measure this computer with a model's experts in 15 seconds: disk, memory, kernels, layers"
    bench = add_verb(verbs, "bench", text, _saying_so(_bench, "The measurement"))
    bench.add_argument("model", nargs="?", default="demo", help="name of a model, or its folder (demo)")
    text = "decode with a simulated graphics card instead: memory, GB/s and µs, such as 8GB,25,10"
    bench.add_argument("--simulate", metavar="CARD", help=text)
    bench.add_argument("--expert-ram", metavar="AMOUNT", help="with --simulate: RAM for experts, or a share such as 30%%")
    text = "with --simulate: memory that may be taken of the card, or a share such as 50%%"
    bench.add_argument("--vram-limit", metavar="AMOUNT", help=text)
    bench.set_defaults(make_bar=make_bar)


def _saying_so(run: Run, what: str) -> Run:
    """Ctrl-C ends it, and that is told."""

    def watched(options: argparse.Namespace) -> int:
        try:
            return run(options)
        except KeyboardInterrupt:
            text = f"{what} was ended; nothing of it was kept."
            if options.json:
                print(json.dumps({"error": {"code": "cli.ended", "text": text, "hint": ""}}))
            print(f"stoker: {text}", file=sys.stderr)
            return 130

    return watched


def _plan(options: argparse.Namespace) -> int:
    if options.folder and options.model:
        raise EngineError("cli.model", f"Both {options.folder} and --model {options.model} are given.", "Give one of them.")
    wishes = wishes_of(options)
    name = next((given for given in (options.folder, options.model) if given is not None), "demo")
    folder = _local(name)
    here = probe_all([folder or models_folder()])
    machine, notebook = _supposed(here, options), Notebook(data_folder(), here)
    if folder is None:
        plan = _plan_remote(name, wishes, machine, options)
    else:
        plan = _plan_local(folder, wishes, machine, notebook, options)
    if options.json:
        print(json.dumps(dataclasses.asdict(plan) | {"fit": fit_of(plan)}, allow_nan=False))
        return 0
    print("\n".join(f"{label:12} {text}".rstrip() for label, text in plan_rows(plan)))
    print(f"\n{plan.sentence}")
    for note in plan.notes:
        print(note)
    return 0


def _local(name: str) -> Path | None:
    """The folder of a model that is here; None for a name that can only be the Hub's."""
    try:
        return find_model(name, models_folder())
    except EngineError as error:
        if error.code != "model.not_found":
            raise
        if name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/")):
            return None
        raise EngineError(error.code, error.text, f"{error.hint} For one of the Hugging Face Hub, give maker/model.") from None


def _supposed(machine: Machine, options: argparse.Namespace) -> Machine:
    if options.ram is not None:
        size = _amount("--ram", options.ram)
        machine = replace(machine, ram_total=max(size, machine.ram_total), ram_available=size, is_capped=False)
    if options.vram is not None:
        cards = [gpu for gpu in machine.gpus if gpu.name == main_card(machine)] or [Gpu("a graphics card", GpuKind.NVIDIA)]
        machine = replace(machine, gpus=(replace(cards[0], vram_free=_amount("--vram", options.vram)),))
    return machine


def _amount(option: str, text: str) -> int:
    """Of memory that a computer may have. Raises `EngineError`."""
    takes = f"{option} takes {format_bytes(_LEAST_MEMORY)} to {format_bytes(_MOST_MEMORY)}."
    try:
        size = parse_bytes(text)
    except EngineError as error:
        raise EngineError(error.code, error.text, f"{error.hint} {takes}") from None
    if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
        raise EngineError("plan.memory", f"No computer has {text} of memory.", takes)
    return size


def _plan_local(folder: Path, wishes: Wishes, machine: Machine, notebook: Notebook, options: argparse.Namespace) -> Plan:
    """With the rates of this computer, whatever memory `machine` is supposed to have; those of RAM, CPU and drive are measured
    now where there are none yet."""
    from engine.measure import knowledge_of  # here, since it brings torch
    from engine.source import inspect

    source = inspect(folder)
    bar = options.make_bar(_STAGE, options.json)
    known = knowledge_of(source, notebook, progress=lambda done, total: bar.show_stage(_STAGE, done, total))
    bar.end()
    return forecast(machine, source.footprint, wishes, known, suggested_expert_ram(folder))


def _plan_remote(name: str, wishes: Wishes, machine: Machine, options: argparse.Namespace) -> Plan:
    """From config.json and headers alone."""
    from engine.judge import look_around, remote_footprint
    from engine.store.hub import default_access
    from engine.store.patience import Patience, Throttle
    from engine.store.web import Line, tls_context

    line = Line(default_access(), tls_context(), Patience(stall_seconds=15, retries=1), Throttle())
    footprint, nbytes = remote_footprint(line, name, lambda: False)
    ground = replace(look_around(data_folder(), ""), machine=machine)
    plan = forecast(ground.machine_here, footprint, wishes, ground.knowledge(footprint))
    if nbytes > ground.free_bytes:
        more = format_bytes(nbytes - ground.free_bytes)
        plan = replace(plan, notes=(*plan.notes, f"It takes {format_bytes(nbytes)} to download: the drive needs {more} more."))
    return plan


def plan_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) of each line."""
    yield "Model", f"{plan.model_name}: {plan.architecture}, {plan.weight_format}, {format_bytes(plan.model_bytes)}"
    per_token = f"{plan.top_k} per token, {format_bytes(plan.expert_bytes)} each"
    yield "Experts", f"{plan.num_experts} in each of {plan.num_layers} layers, {per_token}"
    yield "Context", f"{plan.context} tokens, kept as {plan.kv_type}"
    for tier in plan.tiers:
        yield LINK_NAMES[tier.link], tier_text(tier)
    if plan.ceilings_gbps:
        links = ", ".join(f"{LINK_NAMES[link]} {gbps:.1f} GB/s" for link, gbps in plan.ceilings_gbps.items())
        yield "Links", f"{links} (measured)"
    yield "Speed", speed_text(plan)
    if plan.measured_tokens_per_second is not None:
        yield "Measured", f"{plan.measured_tokens_per_second:.1f} tokens/s {answers_text(plan.measured_answers)}"
    for first in plan.first_tokens:
        yield "First token", f"{first.low:.1f}–{first.high:.1f} s for a question of {first.prompt_tokens} tokens"
    if plan.limiting is not None:
        yield "Limited by", f"{LINK_NAMES[plan.limiting]}; hit rate from {plan.basis}"
    for gain in plan.gains:
        yield "Would help", f"{gain.text}: {_range(gain.tokens_per_second)} tokens/s"
    for price in plan.prices:
        more = f"{format_bytes(abs(price.amount))} {'more' if price.amount > 0 else 'less'}, " if price.amount else ""
        yield "Instead", f"{price.text}: {more}{_range(price.tokens_per_second)} tokens/s"


def tier_text(tier: Tier) -> str:
    parts = (("dense weights", tier.dense), ("context", tier.kv), ("workspace", tier.workspace), ("experts", tier.experts),
             ("the whole model", tier.model))  # fmt: skip
    held = " + ".join(f"{format_bytes(nbytes)} {what}" for what, nbytes in parts if nbytes)
    room = f" of {format_bytes(tier.room)}" if tier.room else ""
    return f"{held or 'nothing'}{room}{f' on {tier.name}' if tier.link is not Link.RAM and tier.name else ''}"


def speed_text(plan: Plan) -> str:
    if plan.predicted is None or plan.predicted_tokens_per_second is None:
        return plan.unknown or "not measured"
    moved = " + ".join(f"{format_bytes(use.bytes)} {LINK_NAMES[link]}" for link, use in plan.predicted.links.items())
    return f"{_range(plan.predicted_tokens_per_second)} tokens/s predicted, {moved} per token"


def answers_text(count: int) -> str:
    return "in the last answer here" if count == 1 else f"in the middle of the last {count} answers here"


def _range(speed: tuple[float, float]) -> str:
    return f"{speed[0]:.1f}–{speed[1]:.1f}"


def _simulate(options: argparse.Namespace) -> int:
    from engine.simulate_cli import as_json, as_rows, parse_simulation, simulate

    simulation = parse_simulation(options.simulate)
    check_amounts(options)
    wishes = Wishes(options.expert_ram, vram_limit=options.vram_limit)
    outcome = simulate(find_model(options.model, models_folder()), simulation, wishes)
    if options.json:
        print(json.dumps(as_json(outcome), allow_nan=False))
        return 0
    print("\n".join(f"{label:12} {text}" for label, text in as_rows(outcome)))
    print(f"\n{outcome.sentence}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    if options.simulate is not None:
        return _simulate(options)
    for name in ("expert_ram", "vram_limit"):
        if getattr(options, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise EngineError("cli.usage", f"{option} is for a simulated card.", "Give --simulate too, or leave it out.")
    deadline, folder = time.monotonic() + _BENCH_SECONDS, find_model(options.model, models_folder())
    from engine.measure import measure_all
    from engine.source import inspect

    bar = options.make_bar(_STAGE, options.json)
    try:
        source = inspect(folder)
        found = measure_all(source, folder, Notebook(data_folder(), probe()), deadline, bar.show_stage)
    finally:
        bar.end()
    if options.json:
        by_format = {name: dict(curve)[1.0] for name, curve in found.formats.items()}
        cards = {name: rates.to_json() for name, rates in found.cards.items()}
        told = {"model": source.checkpoint.name, "rates": found.rates.to_json(), "formats_gbps": by_format, "cards": cards}
        print(json.dumps(told, allow_nan=False))
        return 0
    formats = ", ".join(f"{name} {curve[0][1]:.1f}" for name, curve in found.formats.items())
    rows = [*bench_rows(source.footprint.weight_format, found.rates), ("Formats", f"{formats} GB/s, one token")]
    for name, rates in found.cards.items():
        rows += card_rows(name, rates)
    print("\n".join(f"{label:12} {text}" for label, text in rows))
    return 0


def bench_rows(weight_format: str, rates: Rates) -> Iterator[tuple[str, str]]:
    yield "RAM", f"{rates.ram_gbps:.1f} GB/s read by every thread"
    yield "Disk", f"{rates.disk_gbps:.2f} GB/s, whole experts of {format_bytes(rates.expert_bytes)}, unbuffered"
    yield "Disk, fresh", f"{rates.fresh_gbps:.2f} GB/s into memory that the system has to find first"
    yield "Experts", f"{rates.expert_gbps:.1f} GB/s of {weight_format} weights, one token"
    yield "Dense", f"{rates.dense_gbps:.1f} GB/s of weights, one token"
    yield "Context", f"{rates.kv_gbps:.1f} GB/s of keys and values"
    yield "A layer", f"{rates.layer_seconds * 1e6:.0f} µs beyond its bytes"
    yield "A token", f"{rates.token_seconds * 1e3:.1f} ms beyond its layers"
    yield "Overlap", ", ".join(f"{x:.1f}→{y:.1f}" for x, y in rates.overlap) + " (drive / computing → both / computing)"


def card_rows(name: str, rates: CardRates) -> Iterator[tuple[str, str]]:
    yield name, f"{rates.vram_gbps:.0f} GB/s of its memory, experts {rates.expert_gbps:.0f}, dense {rates.dense_gbps:.0f}"
    layers, resident = rates.layer_seconds * 1e6, rates.resident_layer_seconds * 1e6
    yield "Its layers", f"{layers:.0f} µs beyond their bytes, {resident:.0f} with all experts there"
    yield "Its tokens", f"{rates.token_seconds * 1e3:.1f} ms beyond their layers"
    link, cpu = rates.lanes.link, rates.lanes.cpu
    yield "Gathering", f"{link.each * 1e6:.0f} µs an expert and {link.fixed * 1e6:.0f} µs a step"
    yield "The CPU", f"{cpu.each * 1e6:.0f} µs an expert and {cpu.fixed * 1e6:.0f} µs a step"
