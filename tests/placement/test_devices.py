"""Which device computes an expert, and by which lane it came, never changes the answer. Simulated accelerators."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import KvType, Wishes
from engine.engine import plan_for
from engine.errors import EngineError
from engine.experts.device_lanes import DeviceLanes
from engine.experts.miss import Split
from engine.experts.table import DeviceTable
from engine.experts.vram import Device
from engine.kernels.kernels import Kernels
from engine.meter import Link, Phase, Traffic
from engine.parts import open_parts
from engine.session import Cancelled, FallBack, Parts, Session
from engine.source import inspect
from engine.tiers.copy import DeviceLost
from engine.tiers.disk import DiskReader
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.helpers.tiny import kernels_named, session_on, write_mixtral

PROMPT = torch.randint(3, 259, (70,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS = 24
EXPERTS = 3 * 8
VRAM = 8 << 20


@dataclass
class Answer:
    logits: list[torch.Tensor] = field(default_factory=list)
    records: list[Traffic] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [int(one.argmax()) for one in self.logits]


def answer(session: Session, at_step: Callable[[int], None] = lambda _: None) -> Answer:
    """Prefill and greedy steps."""
    told = Answer()
    logits, traffic = session.sync(PROMPT)
    for step in range(STEPS):
        told.logits.append(logits)
        told.records.append(traffic)
        at_step(step)
        logits, traffic = session.step(int(logits.argmax()))
    return told


def assert_same(ours: Answer, theirs: Answer) -> None:
    assert ours.ids == theirs.ids
    for one, other in zip(ours.logits, theirs.logits, strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("devices") / "model", torch.bfloat16)


@pytest.fixture(scope="module", params=["reference", "native"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_named(request.param)


@pytest.fixture(scope="module")
def expected(folder: Path, kernels: Kernels) -> Answer:
    with session_on(folder, None, kernels, expert_ram="100%") as (session, _):
        return answer(session)


def lanes_of(session: Session) -> DeviceLanes:
    lanes = session._parts.experts._lanes
    assert isinstance(lanes, DeviceLanes)
    return lanes


def devices(kernels: Kernels, *sizes: int, **simulation: Any) -> list[Device]:
    return [
        Device(SimulatedAccelerator(Simulation(size, **simulation), f"card {number}"), kernels)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("vram_slots", [EXPERTS, 12, 6, 4])
@pytest.mark.parametrize("expert_ram", ["100%", "34%"])
def test_experts_in_vram_do_not_change_logits(
    folder: Path, kernels: Kernels, expected: Answer, vram_slots: int, expert_ram: str
) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=vram_slots, expert_ram=expert_ram) as (
        session,
        _,
    ):
        assert_same(answer(session), expected)
        for tier in lanes_of(session).tiers:
            tier.cache.check_integrity()


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize("expert_ram", ["100%", "34%"])
def test_no_lane_changes_logits(folder: Path, kernels: Kernels, expected: Answer, split: Split, expert_ram: str) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=6, expert_ram=expert_ram) as (session, _):
        path = lanes_of(session).path
        path.in_use = path._now = split
        assert_same(answer(session), expected)


def test_two_unlike_devices(folder: Path, kernels: Kernels, expected: Answer) -> None:
    cards = devices(kernels, VRAM, VRAM // 16)
    with session_on(folder, None, kernels, devices=cards, vram_slots=(EXPERTS - 8, 8), expert_ram="34%") as (session, _):
        tiers = lanes_of(session).tiers
        assert len(tiers) == 2
        assert tiers[0].arena.num_slots > tiers[1].arena.num_slots > 0
        assert_same(answer(session), expected)
        assert all(tier.cache.member_slots for tier in tiers)
        layers = [{layer for layer, held in tier.cache._resident.items() if held} for tier in tiers]
        assert all(len(held) > 1 for held in layers), "slots do not follow layers"


def test_slots_stolen_in_mid_run(folder: Path, kernels: Kernels, expected: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program takes memory and gives it back: slots shrink and grow, the answer goes on."""
    monkeypatch.setattr("engine.tiers.vram._CHUNK", 1)  # a slot each, as they are tiny
    monkeypatch.setattr("engine.experts.budget._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._STEP_BYTES", 1)
    (card,) = devices(kernels, VRAM)
    seen = []

    def steal(step: int) -> None:
        accelerator = card.accelerator
        assert isinstance(accelerator, SimulatedAccelerator)
        accelerator.others = {5: VRAM - (10 << 10), 15: 0}.get(step, accelerator.others)
        seen.append(tier.budget.num_slots)
        assert accelerator._taken == tier.budget.num_slots * tier.arena.stride, "the others get what was given back"

    with session_on(folder, None, kernels, devices=[card], vram_slots=EXPERTS, expert_ram="100%") as (session, _):
        (tier,) = lanes_of(session).tiers
        assert_same(answer(session, steal), expected)
        tier.cache.check_integrity()
    assert min(seen) < EXPERTS / 2
    assert seen[-1] > min(seen)


def test_the_meter_counts_what_each_link_moved(folder: Path, kernels: Kernels) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=6, expert_ram="100%") as (session, plan):
        for record in answer(session).records:
            moved = {link: use.bytes for link, use in record.links.items()}
            assert record.vram_hits <= record.hits
            served = moved.get(Link.VRAM, 0) + moved.get(Link.RAM, 0)
            assert moved.get(Link.PCIE, 0) % plan.expert_bytes == 0
            assert served >= (record.hits + record.misses) * plan.expert_bytes
            assert all(use.seconds > 0 for link, use in record.links.items() if link in (Link.PCIE, Link.VRAM))
            if record.phase is Phase.DECODE:
                assert record.hits + record.misses == 3 * 2
                gathered = moved.get(Link.PCIE, 0) // plan.expert_bytes
                assert gathered <= record.hits + record.misses - record.vram_hits


def test_everything_in_vram_needs_no_link(folder: Path, kernels: Kernels) -> None:
    """Once every expert has come, a token moves nothing over the link and computes nothing in RAM."""
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=2 * EXPERTS, expert_ram="100%") as (
        session,
        _,
    ):
        path = lanes_of(session).path
        path.in_use = path._now = Split.GPU
        last = answer(session).records[-1]
        assert last.vram_hits == last.hits == 3 * 2
        assert Link.PCIE not in last.links


def test_where_every_expert_is_in_vram_the_host_is_not_asked(
    folder: Path, kernels: Kernels, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=EXPERTS, expert_ram="100%") as (
        session,
        _,
    ):
        lanes = lanes_of(session)
        (tier,), on_device = lanes.tiers, lanes.on_device
        assert on_device is not None
        bring_all(session)
        logits, _ = session.sync(PROMPT)
        with monkeypatch.context() as patched:
            patched.setattr("engine.experts.run.Call", None)
            for theirs in expected.logits:
                assert torch.equal(logits, theirs)
                logits, traffic = session.step(int(theirs.argmax()))
        assert traffic.vram_hits == traffic.hits == 3 * 2
        assert lanes.heat(), "and yet it learns what was used"
        tier.cache.retire([0])  # another program takes some
        session.step(5)
        assert not on_device.is_on


def test_two_devices_with_room_for_all_hold_all(folder: Path, kernels: Kernels, expected: Answer) -> None:
    cards = devices(kernels, VRAM, VRAM)
    with session_on(folder, None, kernels, devices=cards, vram_slots=(EXPERTS - 7, 7), expert_ram="100%") as (session, _):
        bring_all(session)
        told = answer(session)
        assert_same(told, expected)
        assert all(record.vram_hits == record.hits for record in told.records)


def bring_all(session: Session) -> None:
    """Every expert to its device, as a warm start does."""
    lanes, runner = lanes_of(session), session._parts.experts
    lanes.warm({(layer, expert): 1.0 for layer in range(3) for expert in range(8)}, lambda wanted: runner.bring(wanted, 60.0))


def test_a_cache_that_serves_nobody_is_told(folder: Path, kernels: Kernels) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=4, expert_ram="100%") as (session, _):
        lanes = lanes_of(session)
        path = lanes.path
        path.split = lambda misses: 0  # type: ignore[method-assign]
        session.sync([5])
        for tier in lanes.tiers:
            tier.cache.retire(range(tier.arena.num_slots - 1))
        assert not lanes.notice
        for _ in range(40):
            session.step(5)
        assert "VRAM" in lanes.notice


def test_a_link_that_changes_bytes_is_refused(folder: Path, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(self: SimulatedAccelerator, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        for source, target in pairs:
            target.copy_(source)
            target[len(target) // 2] ^= 1
        return 0.0

    monkeypatch.setattr(SimulatedAccelerator, "_move", lie)
    with (
        pytest.raises(DeviceLost, match="card 0 gives back other bytes"),
        session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=6),
    ):
        pass


def test_a_card_without_room_is_told(folder: Path, kernels: Kernels) -> None:
    with (
        pytest.raises(DeviceLost, match="no room for an expert"),
        session_on(folder, None, kernels, devices=devices(kernels, 1 << 10), vram_slots=6),
    ):
        pass


@pytest.mark.parametrize("pin_bytes", [None, 0, 40 << 10])
def test_memory_that_may_not_be_registered_takes_a_detour(
    folder: Path, kernels: Kernels, expected: Answer, pin_bytes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container or Windows grants some of it, or none: the slots behind come through a ring of buffers."""
    monkeypatch.setattr("engine.tiers.arena._CHUNK", 32 << 10)
    (card,) = devices(kernels, VRAM, pin_bytes=pin_bytes)
    accelerator = card.accelerator
    assert isinstance(accelerator, SimulatedAccelerator)
    with session_on(folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%") as (session, _):
        assert_same(answer(session), expected)
    assert (accelerator.detours > 0) == (pin_bytes is not None)


@pytest.mark.parametrize("vram_slots", [2, 6, 12])
def test_a_prompt_after_one_that_was_given_up(folder: Path, kernels: Kernels, expected: Answer, vram_slots: int) -> None:
    """After its first layer, all that experts pass through is full of that layer's."""
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=vram_slots, expert_ram="100%") as (
        session,
        _,
    ):
        edges = iter([False, True])
        with pytest.raises(Cancelled):
            session.sync(PROMPT, lambda: next(edges))
        assert_same(answer(session), expected)


def test_a_token_that_was_given_up_counts_for_none(folder: Path, kernels: Kernels) -> None:
    with session_on(folder, None, kernels, devices=devices(kernels, VRAM), vram_slots=12, expert_ram="100%") as (session, plan):
        session.sync(PROMPT)
        session.step(5)
        edges = iter([False, False, True])
        with pytest.raises(Cancelled):
            session.step(6, lambda: next(edges))
        _, traffic = session.step(6)
        parts = session._parts
        parts.kv.length -= 1
        dense = parts.dense_bytes + parts.kv.read_bytes(1)
        served = traffic.links[Link.VRAM].bytes + (traffic.links[Link.RAM].bytes if Link.RAM in traffic.links else 0)
        assert served == dense + 3 * 2 * plan.expert_bytes


def cpu_parts(folder: Path, kernels: Kernels) -> FallBack:
    """As the engine makes them when a device is lost."""

    def parts(_: str) -> Parts:
        source = inspect(folder)
        return open_parts(source, plan_for(source, Wishes(context=256, kv_type=KvType.FP32)), DiskReader(), kernels)

    return parts


@pytest.mark.parametrize("lost_at", [0, 7])
def test_a_lost_device_does_not_end_the_answer(folder: Path, kernels: Kernels, expected: Answer, lost_at: int) -> None:
    (card,) = devices(kernels, VRAM)

    def lose(step: int) -> None:
        if step == lost_at:
            assert isinstance(card.accelerator, SimulatedAccelerator)
            card.accelerator.lose()

    with session_on(
        folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%", fall_back=cpu_parts(folder, kernels)
    ) as (session, _):
        ours = answer(session, lose)
        assert ours.ids == expected.ids
        for one, other in zip(ours.logits, expected.logits, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)  # its tokens are read again, as a prompt
        assert Link.VRAM not in ours.records[-1].links
        session.sync([*PROMPT, 7])  # and it is a session like any other


def test_what_was_lost_is_gone_before_there_is_another(folder: Path, kernels: Kernels) -> None:
    """RAM has no room for the experts' slots twice."""
    (card,) = devices(kernels, VRAM)
    seen = []

    def fall_back(reason: str) -> Parts:
        seen.append((ram() is None, card.accelerator._taken))  # type: ignore[attr-defined]
        return cpu_parts(folder, kernels)(reason)

    gc.disable()  # it may come at any time, or not
    try:
        with session_on(folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%", fall_back=fall_back) as (
            session,
            _,
        ):
            session.sync(PROMPT)
            ram = weakref.ref(lanes_of(session).ram)
            assert isinstance(card.accelerator, SimulatedAccelerator)
            card.accelerator.lose()
            session.step(5)
    finally:
        gc.enable()
    assert seen == [(True, 0)]


def test_a_device_lost_in_a_prompt(folder: Path, kernels: Kernels, expected: Answer) -> None:
    (card,) = devices(kernels, VRAM)
    with session_on(
        folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%", fall_back=cpu_parts(folder, kernels)
    ) as (session, _):
        assert isinstance(card.accelerator, SimulatedAccelerator)
        card.accelerator.lose()
        assert_same(answer(session), expected)


def test_without_a_way_back_the_end_is_clear(folder: Path, kernels: Kernels) -> None:
    (card,) = devices(kernels, VRAM)
    with session_on(folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%") as (session, _):
        session.sync(PROMPT)
        assert isinstance(card.accelerator, SimulatedAccelerator)
        card.accelerator.lose()
        for _ in range(2):  # the next request is told the same
            with pytest.raises(EngineError, match="The graphics device stopped: card 0 is gone"):
                session.step(5)


@pytest.mark.parametrize("times", [1, 2])
def test_memory_that_runs_out_costs_slots(
    folder: Path, kernels: Kernels, expected: Answer, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: a quarter of the slots go and the pass is tried again. Again at once: the CPU goes on."""
    (card,) = devices(kernels, VRAM)
    left = 0
    moe = type(kernels).moe

    def refusing(self: Kernels, table: object, *arguments: Any, **constants: Any) -> torch.Tensor | None:
        nonlocal left
        if isinstance(table, DeviceTable) and left:
            left -= 1
            raise torch.OutOfMemoryError("no memory")
        return moe(self, table, *arguments, **constants)  # type: ignore[arg-type]

    def refuse(step: int) -> None:
        nonlocal left
        left = times if step == 5 else left

    monkeypatch.setattr(type(kernels), "moe", refusing)
    with session_on(
        folder, None, kernels, devices=[card], vram_slots=EXPERTS, expert_ram="100%", fall_back=cpu_parts(folder, kernels)
    ) as (session, _):
        (tier,) = lanes_of(session).tiers
        ours = answer(session, refuse)
        assert ours.ids == expected.ids
        assert (Link.VRAM in ours.records[-1].links) == (times == 1)
        assert tier.budget.num_slots < tier.arena.num_slots


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("the driver has gone")])
def test_a_device_that_fails_while_it_gives_memory_back_is_lost(
    folder: Path, kernels: Kernels, expected: Answer, error: RuntimeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving back asks the device too, which may have no memory for that."""
    (card,) = devices(kernels, VRAM)

    def refuse(step: int) -> None:
        if step == 5:
            lanes = lanes_of(session)
            monkeypatch.setattr(lanes, "serve", partial(fail, torch.OutOfMemoryError("no memory")))
            monkeypatch.setattr(lanes, "release", partial(fail, error))

    def fail(error: RuntimeError, *_: object, **__: object) -> None:
        raise error

    with session_on(
        folder, None, kernels, devices=[card], vram_slots=6, expert_ram="100%", fall_back=cpu_parts(folder, kernels)
    ) as (session, _):
        ours = answer(session, refuse)
        assert ours.ids == expected.ids
        assert Link.VRAM not in ours.records[-1].links


def test_where_ram_does_not_suffice_either_every_request_is_told(folder: Path, kernels: Kernels) -> None:
    (card,) = devices(kernels, VRAM)

    def too_little(_: str) -> Parts:
        raise EngineError("plan.too_little_memory", "model needs 80 GB of memory at least.", "Close other programs.")

    with session_on(folder, None, kernels, devices=[card], vram_slots=6, fall_back=too_little) as (session, _):
        session.sync(PROMPT)
        assert isinstance(card.accelerator, SimulatedAccelerator)
        card.accelerator.lose()
        for _ in range(2):
            with pytest.raises(EngineError, match="needs 80 GB"):
                session.step(5)
        with pytest.raises(EngineError, match="needs 80 GB"):
            session.sync(PROMPT)
        assert session.heat() == {}
        assert session.misses() is None
        assert "card 0 is gone" in session.notice
