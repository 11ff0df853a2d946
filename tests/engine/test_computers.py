"""A dozen unlike computers with the models people run: never over a budget, monotone in every resource, always a reason."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Cpu, DriveFacts, DriveKind, Gpu, GpuKind, Holder, Machine
from engine.judge import footprint_of_catalogue, without_holder
from engine.meter import Link
from engine.plan.footprint import Footprint
from engine.plan.forecast import Knowledge, fit_of, forecast
from engine.plan.plan import make_plan
from engine.protocol import Fit, Plan
from engine.store.catalogue import read_catalogue
from engine.units import GB
from tests.helpers.rates import CARD, RATES

DRIVE = DriveFacts("/models", "/dev/nvme0n1p2", "/", DriveKind.NVME, "ext4", free_bytes=900 * GB, total_bytes=1000 * GB)


def _gpu(name: str, total: int, free: float, kind: GpuKind = GpuKind.NVIDIA, **facts: object) -> Gpu:
    return replace(Gpu(name, kind, vram_total=total * GB, vram_free=int(free * GB)), **facts)  # type: ignore[arg-type]


def _machine(ram: float, free: float, *gpus: Gpu, **facts: object) -> Machine:
    machine = Machine(int(ram * GB), int(free * GB), False, cpu=Cpu("a processor", 8, 16), gpus=gpus, drives=(DRIVE,))
    return replace(machine, **facts)  # type: ignore[arg-type]


INTEGRATED = _gpu("Radeon 780M", 4, 3.5, GpuKind.AMD, is_integrated=True)
COMPUTERS = {
    "laptop 8/32": _machine(32, 24, _gpu("RTX 4060 Laptop", 8, 7.1)),
    "desktop 12/64": _machine(64, 55, _gpu("RTX 4070", 12, 10.9)),
    "workstation 24/128": _machine(128, 115, _gpu("RTX 4090", 24, 22.8)),
    "two unlike cards": _machine(64, 50, _gpu("RTX 3060", 12, 11.2), _gpu("RTX 3090", 24, 20.1)),
    "integrated and card": _machine(32, 22, INTEGRATED, _gpu("RTX 4050 Laptop", 6, 5.4)),
    "no card": _machine(32, 26),
    "laptop 16": _machine(16, 9.5, INTEGRATED),
    "WSL with a pin cap": _machine(32, 14, _gpu("RTX 4080", 16, 14.2), system="WSL", pinnable=4 * GB),
    "server 512": _machine(512, 490, cpu=Cpu("EPYC 9354", 32, 64, numa_nodes=2)),
    "container 4": _machine(128, 3.6, is_capped=True, ram_limit=4 * GB),
    "Apple": _machine(48, 36, Gpu("Apple M4 Pro", GpuKind.APPLE, is_integrated=True), has_unified_memory=True, system="macOS"),
    "AMD card": _machine(64, 52, _gpu("RX 7900 XTX", 24, 23.1, GpuKind.AMD)),
    "a card without figures": _machine(32, 20, Gpu("RTX 3080", GpuKind.NVIDIA, vram_total=None, vram_free=None)),
    "a card that does not answer": _machine(32, 20, _gpu("RTX 3080", 10, 9, trouble="NVML: GPU is lost")),
    "a full drive": _machine(32, 20, drives=(replace(DRIVE, free_bytes=0),)),
}
KNOWN = Knowledge(RATES, "", CARD, "")


def _footprints() -> Iterator[Footprint]:
    """Of architectures that the engine does not run yet the cache's geometry is invented."""
    for model in read_catalogue():
        shape = model.geometry
        if not shape.kv_heads:
            shape = replace(shape, kv_heads=8, head_dim=128, vocab=150_000, max_context=131_072)
        for _, form, nbytes in model.releases:
            yield footprint_of_catalogue(replace(model, geometry=shape), form, nbytes)


FOOTPRINTS = list(_footprints())


def _plan(machine: Machine, footprint: Footprint, known: Knowledge = KNOWN, **wishes: object) -> Plan | None:
    try:
        return forecast(machine, footprint, Wishes(**wishes), known)  # type: ignore[arg-type]
    except EngineError as refusal:
        error = refusal
    assert error.text, "a refusal has a reason"
    assert error.hint, "and a next step"
    assert error.code.startswith("plan."), error.code
    return None


def _slots(plan: Plan | None) -> int:
    return 0 if plan is None else sum(plan.slots_per_layer) + plan.vram_slots


def _speed(plan: Plan | None) -> float:
    return 0.0 if plan is None or plan.predicted_tokens_per_second is None else plan.predicted_tokens_per_second[0]


def _numbers(plan: Plan) -> Iterator[float]:
    assert plan.predicted is not None
    assert plan.predicted_tokens_per_second is not None
    yield from plan.predicted_tokens_per_second
    yield plan.predicted.seconds
    for use in plan.predicted.links.values():
        yield from (use.bytes, use.seconds)
    for first in plan.first_tokens:
        yield from (first.low, first.high)
    for gain in (*plan.gains, *plan.prices):
        yield from gain.tokens_per_second


@pytest.mark.parametrize("name", COMPUTERS)
def test_never_over_a_budget_and_every_number_is_one(name: str) -> None:
    machine = COMPUTERS[name]
    assert len(FOOTPRINTS) >= 15
    for footprint in FOOTPRINTS:
        plan = _plan(machine, footprint)
        if plan is None:
            continue
        assert sum(tier.used for tier in plan.tiers if tier.link is Link.RAM) <= machine.ram_available, footprint.name
        assert all(math.isfinite(number) and number > 0 for number in _numbers(plan)), footprint.name
        low, high = plan.predicted_tokens_per_second or (0, 0)
        assert low < high
        assert (fit_of(plan) in (Fit.VRAM, Fit.VRAM_RAM)) <= (plan.vram_slots > 0)
        assert plan.sentence
        assert plan.basis
        unused = any(gpu.is_usable for gpu in machine.gpus) and not plan.vram_slots
        assert any(" unused: " in note for note in plan.notes) == unused


@pytest.mark.parametrize("name", COMPUTERS)
def test_a_plan_with_cards_never_takes_more_than_is_free(name: str) -> None:
    machine = COMPUTERS[name]
    free = sum(gpu.vram_free or 0 for gpu in machine.gpus if gpu.is_usable)
    for footprint in FOOTPRINTS:
        try:
            plan = make_plan(machine, footprint, Wishes())
        except EngineError:
            continue
        used = {tier.link: tier.used for tier in plan.tiers}
        assert used.get(Link.VRAM, 0) <= free, footprint.name
        assert used[Link.RAM] <= machine.ram_available, footprint.name
        assert max(plan.vram_slots, sum(plan.slots_per_layer)) <= footprint.experts_total, footprint.name
        if fit_of(plan) is Fit.VRAM:
            assert sum(plan.slots_per_layer) == footprint.floor_slots, "they pass through RAM once"
        without = _plan(replace(machine, gpus=()), footprint, context=plan.context)
        assert _slots(plan) >= _slots(without), "a card only adds"
        if plan.vram_slots:
            told = forecast(machine, footprint, Wishes(), replace(KNOWN, card=None, unknown_card="it was not measured"))
            assert told.unknown == "Cannot estimate, because it was not measured."
            foretold = forecast(machine, footprint, Wishes(), KNOWN)
            assert foretold.predicted is not None
            assert foretold.predicted.vram_hits <= foretold.predicted.hits
            assert {Link.VRAM, Link.PCIE} <= foretold.ceilings_gbps.keys()


@pytest.mark.parametrize("name", COMPUTERS)
def test_more_of_anything_is_never_worse(name: str) -> None:
    machine = COMPUTERS[name]
    disk = replace(RATES, disk_gbps=2 * RATES.disk_gbps, fresh_gbps=2 * RATES.fresh_gbps)
    kernels = replace(RATES, expert_gbps=2 * RATES.expert_gbps, dense_gbps=2 * RATES.dense_gbps, kv_gbps=2 * RATES.kv_gbps)
    for footprint in FOOTPRINTS:
        base = _plan(machine, footprint, context=2048)
        for more in (1, 4, 16, 64, 256):
            roomier = replace(machine, ram_total=machine.ram_total + more * GB, ram_available=machine.ram_available + more * GB)
            better = _plan(roomier, footprint, context=2048)
            assert _slots(better) >= _slots(base), footprint.name
            assert _speed(better) >= _speed(base) * 0.9999, footprint.name
            free = _plan(machine, footprint), _plan(roomier, footprint)
            if free[0] is not None:
                assert free[1] is not None
                assert (free[1].context, _slots(free[1])) >= (free[0].context, _slots(free[0])), footprint.name
            base = better
        for rates in (disk, kernels):
            assert _speed(_plan(machine, footprint, replace(KNOWN, rates=rates), context=2048)) >= _speed(
                _plan(machine, footprint, context=2048)
            ), footprint.name
        for gpu in machine.gpus[:1]:
            if gpu.is_usable:
                larger = replace(machine, gpus=(replace(gpu, vram_free=2 * (gpu.vram_free or 0)), *machine.gpus[1:]))
                held = [_card_slots(one, footprint) for one in (machine, larger)]
                assert held[0] <= held[1], footprint.name
                if held[0]:
                    speeds = [_speed(_plan(one, footprint, context=2048)) for one in (machine, larger)]
                    assert speeds[1] >= speeds[0] * 0.9999, footprint.name


def _card_slots(machine: Machine, footprint: Footprint) -> int:
    try:
        return make_plan(machine, footprint, Wishes(context=2048)).vram_slots
    except EngineError:
        return 0


def test_integrated_memory_is_no_vram() -> None:
    for name in ("laptop 16", "Apple", "a card without figures", "a card that does not answer"):
        assert make_plan(COMPUTERS[name], FOOTPRINTS[0], Wishes(context=512, expert_ram="20%")).vram_slots == 0


def test_what_a_card_would_hold() -> None:
    small = next(footprint for footprint in FOOTPRINTS if footprint.name == "gpt-oss-20b")
    assert fit_of(make_plan(COMPUTERS["workstation 24/128"], small, Wishes())) is Fit.VRAM
    assert fit_of(make_plan(COMPUTERS["laptop 8/32"], small, Wishes())) is Fit.VRAM_RAM
    assert fit_of(make_plan(COMPUTERS["no card"], small, Wishes())) is Fit.RAM
    assert fit_of(make_plan(COMPUTERS["laptop 16"], small, Wishes())) is Fit.DISK


def test_what_would_help_names_ram_that_makes_all_of_it_fit() -> None:
    machine = COMPUTERS["laptop 16"]
    model = next(footprint for footprint in FOOTPRINTS if footprint.name == "gpt-oss-20b")
    plan = _plan(machine, model)
    assert plan is not None
    more = next(gain for gain in plan.gains if gain.text.endswith("more RAM"))
    roomier = replace(machine, ram_available=machine.ram_available + more.amount)
    better = _plan(roomier, model, context=plan.context)
    assert better is not None
    assert fit_of(better) is Fit.RAM
    assert better.predicted_tokens_per_second == more.tokens_per_second


def test_without_rates_there_is_no_number_but_a_reason() -> None:
    plan = _plan(COMPUTERS["no card"], FOOTPRINTS[0], Knowledge())
    assert plan is not None
    assert plan.predicted is None
    assert plan.predicted_tokens_per_second is None
    assert plan.unknown == "Cannot estimate, because this computer has not been measured yet."
    assert not plan.gains


def test_what_the_loaded_model_holds_counts_as_free() -> None:
    held = Holder("python", 9 * GB, 4711), Holder("a game", 2 * GB, 12)
    card = _gpu("RTX 4090", 24, 12.8, vram_holders=held)
    assert without_holder(card, 4711).vram_free == int(21.8 * GB)
    assert without_holder(card, 99) == card
    assert without_holder(replace(card, vram_holders=(Holder("python", 90 * GB, 4711),)), 4711).vram_free == 24 * GB
    assert without_holder(replace(card, vram_free=None), 4711).vram_free is None
