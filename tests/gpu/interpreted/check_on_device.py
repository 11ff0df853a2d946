"""Decoded tokens whose experts the device fetches by itself: the host's answer, whatever comes and goes, and back again."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.captured import Captured, Run
from engine.experts.device_lanes import DeviceLanes
from engine.experts.miss import Split
from engine.experts.on_device import OnDevice
from engine.experts.vram import Device
from engine.kernels.gpu.experts import DeviceExperts
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.gpu.launcher import Launcher
from engine.meter import Link, Origin, Traffic
from engine.models.decoder import Decoder
from engine.session import Cancelled, Session
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.helpers.recorded import Graphs
from tests.helpers.tiny import session_on, write_mixtral

LAYERS, EXPERTS, TOP_K = 2, 8, 2
PROMPT = torch.randint(3, 259, (12,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("on-device") / "model", torch.bfloat16, num_hidden_layers=LAYERS)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.experts.on_device._TRIAL_TOKENS", 2)
    monkeypatch.setattr("engine.experts.on_device._WORSE", 1e9)  # the interpreter is no measure of speed
    monkeypatch.setattr("engine.experts.on_device._OTHER_TIMES", 1e9)


@contextmanager
def running(folder: Path, kernels: DeviceKernels, vram_slots: int) -> Iterator[tuple[Session, DeviceLanes, OnDevice]]:
    """With every expert in RAM, and the link serving all misses."""
    device = Device(SimulatedAccelerator(Simulation(8 << 20)), kernels)
    with session_on(folder, devices=[device], vram_slots=vram_slots, expert_ram="100%") as (session, _):
        runner = session._parts.experts
        every = [(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)]
        runner.load([one for one in every if runner._cache.lookup(*one) is None], 60.0, lambda _: None)
        lanes = runner._lanes
        assert isinstance(lanes, DeviceLanes)
        assert lanes.on_device is not None
        lanes.path.in_use = lanes.path._now = Split.GPU
        yield session, lanes, lanes.on_device


def answer(session: Session, steps: int, at_step: Callable[[int], None] = lambda _: None) -> list[tuple[torch.Tensor, Traffic]]:
    """Logits after the prompt and after each greedy token, with what that moved."""
    told = [session.sync([*session.tokens, *PROMPT])]
    for step in range(steps):
        at_step(step)
        told.append(session.step(int(told[-1][0].argmax())))
    return told


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[torch.Tensor]:
    with session_on(folder, expert_ram="100%") as (session, _):
        return [logits for _ in range(2) for logits, _ in answer(session, STEPS)]


def assert_close(told: list[tuple[torch.Tensor, Traffic]], expected: list[torch.Tensor]) -> None:
    for (ours, _), theirs in zip(told, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("vram_slots", [12, 9])
def test_two_answers(kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], vram_slots: int) -> None:
    """The second one's prompt is read by the host with what the device has brought meanwhile."""
    was_on: list[bool] = []
    with running(folder, kernels, vram_slots) as (session, lanes, on_device):
        told = [one for _ in range(2) for one in answer(session, STEPS, lambda _: was_on.append(on_device.is_on))]
        (tier,) = lanes.tiers
        assert on_device.is_on
        lanes.release()
        tier.cache.check_integrity()
        for expert, slot in tier.cache.residents().items():
            assert torch.equal(tier.table.words[slot], tier.table.words_in(slot, expert))
        assert kernels.launcher is not None, kernels.notice
    assert_close(told, expected)
    assert was_on[:2] == [False, False]
    assert all(was_on[3:STEPS])
    assert all(was_on[STEPS + 1 :])
    traffic = [record for _, record in told[-STEPS:]]
    lookups = LAYERS * TOP_K
    assert all(record.hits == lookups and not record.misses for record in traffic)
    gathered = sum(record.links[Link.PCIE].bytes for record in traffic if Link.PCIE in record.links)
    missed = sum(lookups - record.vram_hits for record in traffic)
    assert missed > 0, "some experts came"
    assert gathered % missed == 0, "and the meter has their bytes"
    prompt = told[STEPS + 1][1].links
    assert Link.PCIE not in prompt or prompt[Link.PCIE].origin is Origin.MEASURED
    assert lanes.heat()


def test_tokens_are_recorded_with_the_memory_that_they_read(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor]
) -> None:
    """A recording knows addresses: slots that have gone back to the host and come again make another one."""
    made: list[int] = []

    def record(run: Run) -> Run:
        made.append(len(made))
        return run

    with running(folder, kernels, 12) as (session, lanes, on_device):
        parts = session._parts
        assert isinstance(parts.model, Decoder)
        parts.captured = Captured(parts.model, parts.kv, on_device, record)
        told = answer(session, STEPS, lambda step: lanes.release() if step == 6 else None)
        assert on_device.gathers
        assert not parts.captured.is_refused
    assert len(made) == 2
    assert_close(told, expected[: STEPS + 1])


def test_it_begins_with_what_the_host_has_brought(kernels: DeviceKernels, folder: Path) -> None:
    with running(folder, kernels, 12) as (session, lanes, on_device):
        (tier,), seen = lanes.tiers, []

        def look(_: int) -> None:
            if not on_device.gathers:
                seen.append(tier.cache.residents())

        answer(session, 4, look)
        assert on_device.gathers
        on_device.look()
        before = {expert for expert, slot in seen[-1].items() if slot >= tier.cache.num_guests}
        assert before & tier.ceded.keys()


def test_kernels_that_are_refused_are_no_wrong_bytes(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.errors import TritonError

    def refuse(*_: object) -> None:
        raise TritonError("no such instruction")

    monkeypatch.setattr("engine.kernels.gpu.launcher.Launcher.gather", refuse)
    with running(folder, kernels, 12) as (session, lanes, on_device):
        told = answer(session, STEPS)
        assert not on_device.is_on
        assert lanes.notice == ""
        assert "no such instruction" in kernels.notice
    assert_close(told, expected[: STEPS + 1])


def test_memory_that_the_device_cannot_read_is_asked_for_seldom(
    kernels: DeviceKernels, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def no(_: SimulatedAccelerator, memory: torch.Tensor) -> bool:
        asked.append(len(memory))
        return False

    monkeypatch.setattr(SimulatedAccelerator, "reads", no)
    with running(folder, kernels, 12) as (session, _, on_device):
        answer(session, STEPS)
        assert not on_device.is_on
    assert len(asked) == 1


def test_slots_stolen_in_mid_run(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tiers.vram._CHUNK", 1)
    monkeypatch.setattr("engine.experts.budget._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._STEP_BYTES", 1)
    was_on: list[bool] = []
    with running(folder, kernels, 14) as (session, lanes, on_device):
        (tier,) = lanes.tiers
        accelerator = tier.accelerator
        assert isinstance(accelerator, SimulatedAccelerator)

        def steal(step: int) -> None:
            was_on.append(on_device.gathers)
            if step == 5:
                accelerator.others = accelerator.free_bytes() + 2 * tier.arena.stride

        told = answer(session, STEPS, steal)
        assert tier.budget.num_slots < 14
        tier.cache.check_integrity()
    assert was_on[5]
    assert_close(told, expected[: STEPS + 1])


def test_experts_that_leave_ram_end_it(kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor]) -> None:
    """The device reads RAM by addresses: the host takes over before they change."""
    was_on: list[bool] = []
    with running(folder, kernels, 12) as (session, _, on_device):
        runner = session._parts.experts

        def steal(step: int) -> None:
            was_on.append(on_device.gathers)
            if step == 5:
                runner._budget._resize(runner._budget.num_slots - 4, 0.0, runner._let_go)

        told = answer(session, STEPS, steal)
        assert not on_device.gathers
    assert was_on[5]
    assert not any(was_on[6:])
    assert_close(told, expected[: STEPS + 1])


def test_a_device_that_is_slower_gives_the_tokens_back(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.experts.on_device._WORSE", 0.0)
    was_on: list[bool] = []
    with running(folder, kernels, 12) as (session, _, on_device):
        told = answer(session, STEPS, lambda _: was_on.append(on_device.gathers))
    assert was_on == [False, False, False, True, True, *[False] * (STEPS - 5)]
    assert_close(told, expected[: STEPS + 1])


def test_a_device_that_brings_other_bytes_is_not_used(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.kernels.gpu.launcher.Launcher.gather", lambda *_: None)
    with running(folder, kernels, 12) as (session, lanes, on_device):
        told = answer(session, STEPS)
        assert not on_device.is_on
        assert "wrong bytes" in lanes.notice
        lanes.tiers[0].cache.check_integrity()
    assert_close(told, expected[: STEPS + 1])


def test_whether_the_device_reads_ram_is_looked_at_seldom(
    kernels: DeviceKernels, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fifteen thousand slots that takes as long as a token."""
    asked = []

    def reads(_: SimulatedAccelerator, memory: torch.Tensor) -> bool:
        asked.append(memory.nbytes)
        return False

    monkeypatch.setattr(SimulatedAccelerator, "reads", reads)
    with running(folder, kernels, 12) as (session, _, on_device):
        answer(session, 5)
        assert not on_device.is_on
    assert len(asked) == 1


def test_a_token_that_was_given_up_counts_for_none(
    kernels: DeviceKernels, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its experts stay where they have come: the next one finds them there."""
    with running(folder, kernels, 12) as (session, _, on_device):
        answer(session, 3)
        assert on_device.gathers
        lookups, token = LAYERS * TOP_K, 3
        missed = on_device._gathered._device_experts
        assert missed is not None
        while True:
            before, edges = int(missed.counters[1]), iter([False] * (LAYERS - 1) + [True])
            with pytest.raises(Cancelled):
                session.step(token, edges.__next__)
            if int(missed.counters[1]) > before:
                break
            token += 1
        on_first = int(missed.counters[1])
        _, traffic = session.step(token)
        came = int(missed.counters[1]) - on_first
        assert traffic.vram_hits == lookups - came
        assert traffic.hits == lookups


def test_memory_that_is_refused_when_it_begins(
    kernels: DeviceKernels, folder: Path, expected: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some slots go, and the others are still the host's."""
    refused: list[bool] = []
    make, start_gathering = DeviceExperts.__init__, OnDevice._start_gathering

    def refuse(self: DeviceExperts, *arguments: Any) -> None:
        if not refused:
            refused.append(True)
            raise torch.OutOfMemoryError("no memory")
        make(self, *arguments)

    monkeypatch.setattr(DeviceExperts, "__init__", refuse)
    monkeypatch.setattr(OnDevice, "_start_gathering", lambda self: not refused and start_gathering(self))
    with running(folder, kernels, 14) as (session, lanes, on_device):
        told = answer(session, 5)
        (tier,) = lanes.tiers
        assert refused
        assert not on_device.is_on
        assert 2 <= tier.budget.num_slots < 14
        assert tier.cache.member_slots == tier.budget.num_slots - tier.cache.num_guests > 0
        tier.cache.check_integrity()
    assert_close(told, expected[:6])


@pytest.mark.parametrize("seed", [1])
def test_whatever_happens(kernels: DeviceKernels, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Recorded tokens among prompts, tokens given up, and memory that goes and comes, in random order."""
    draw, graphs, start = random.Random(seed), Graphs(), Launcher._start
    refuses = False

    def refusing(self: DeviceExperts, layer: int, ids: torch.Tensor, fetch: Callable[..., torch.Tensor] = DeviceExperts.fetch):  # type: ignore[no-untyped-def]
        nonlocal refuses
        if refuses:
            refuses = False
            raise torch.OutOfMemoryError("no memory")
        return fetch(self, layer, ids)

    monkeypatch.setattr(Launcher, "_start", lambda *arguments: graphs.launch(lambda: start(*arguments)))
    monkeypatch.setattr(DeviceExperts, "fetch", refusing)
    monkeypatch.setattr("engine.experts.on_device._TRIAL_TOKENS", 1)
    gathered = 0
    with running(folder, kernels, 16) as (session, lanes, on_device), session_on(folder, expert_ram="100%") as (theirs, plan):
        (tier,), runner, parts = lanes.tiers, session._parts.experts, session._parts
        assert isinstance(parts.model, Decoder)
        parts.captured = Captured(parts.model, parts.kv, on_device, graphs)
        session.sync(PROMPT[:3])
        theirs.sync(PROMPT[:3])
        course = ["token", "token", "prompt", "stop", "stop", "release", "refuse", "rewind"]
        draw.shuffle(course)
        for happens in ["token", "token", *course, "ram"]:  # of which the last may end it for good
            token = draw.randrange(3, 259)
            lanes.path.in_use = lanes.path._now = Split.GPU
            if happens == "prompt":
                tokens = [*session.tokens, token]
                torch.testing.assert_close(session.sync(tokens)[0], theirs.sync(tokens)[0], atol=1e-4, rtol=1e-4)
            elif happens == "stop":
                edges = iter([False] * draw.randrange(LAYERS) + [True])
                recorded, parts.captured = parts.captured, None  # a recording is asked once, before it
                with pytest.raises(Cancelled):
                    session.step(token, edges.__next__)
                parts.captured = recorded
            elif happens == "release":
                lanes.release()
            elif happens == "ram":
                runner._budget._resize(runner._budget.num_slots - 1, 0.0, runner._let_go)
                runner._budget._resize(runner._budget.num_slots + 1, 0.0, runner._let_go)
            elif happens == "refuse":
                refuses = True
            elif happens == "rewind":
                session.rewind(len(session.tokens) - 1)
                theirs.rewind(len(theirs.tokens) - 1)
            ours, traffic = session.step(token)
            torch.testing.assert_close(ours, theirs.step(token)[0], atol=1e-4, rtol=1e-4)
            assert traffic.hits + traffic.misses == LAYERS * TOP_K
            assert 0 <= traffic.vram_hits <= traffic.hits
            moved = traffic.links[Link.PCIE].bytes if Link.PCIE in traffic.links else 0
            assert moved <= (LAYERS * TOP_K - traffic.vram_hits) * plan.expert_bytes
            gathered += on_device.gathers
            assert parts.captured is not None
            assert not parts.captured.is_refused
        lanes.release()
        tier.cache.check_integrity()
        for expert, slot in tier.cache.residents().items():
            assert torch.equal(tier.table.words[slot], tier.table.words_in(slot, expert))
    assert gathered > 6
    assert graphs.repeated > 6
