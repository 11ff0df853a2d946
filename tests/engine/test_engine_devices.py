"""The whole engine with simulated graphics cards: plan, load, answer, and what becomes of it when a card goes."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.accelerators import OpenDevices, open_devices, with_devices
from engine.config import Sampling, Wishes
from engine.engine import Engine
from engine.errors import EngineError
from engine.experts.device_lanes import DeviceLanes
from engine.experts.heat import load_misses
from engine.experts.vram import Device
from engine.hardware.machine import Gpu, GpuKind, Machine
from engine.hardware.probe import probe
from engine.kernels.reference import Reference
from engine.meter import Link
from engine.parts import open_parts
from engine.plan.forecast import vram_taken
from engine.protocol import ChatMessage
from engine.session import Parts
from engine.simulate_cli import as_json, parse_simulation, simulate
from engine.tiers.copy import DeviceLost
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.helpers.tiny import write_mixtral

QUESTION = [ChatMessage("user", "What is it?")]
GREEDY = Sampling(max_tokens=12, temperature=0.0)
Cards = Callable[[Machine], tuple[list[Device], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("engine-devices") / "model")


@pytest.fixture(autouse=True)
def reference_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.engine.open_kernels", lambda: (Reference(), ""))


class CardKernels(Reference):
    """Of a card that may go: torch then raises what it raises for everything else too."""

    def __init__(self, accelerator: SimulatedAccelerator) -> None:
        super().__init__()
        self._accelerator = accelerator

    def moe(self, *arguments: Any, **others: Any) -> torch.Tensor | None:
        try:
            self._accelerator.free_bytes()
        except DeviceLost as lost:
            raise RuntimeError(str(lost)) from None
        return super().moe(*arguments, **others)


def card(vram_bytes: int) -> tuple[SimulatedAccelerator, OpenDevices]:
    accelerator = SimulatedAccelerator(Simulation(vram_bytes), "Card 9000")
    return accelerator, lambda _: ([Device(accelerator, CardKernels(accelerator))], "")


def answer(engine: Engine, at_token: Callable[[int], None] = lambda _: None) -> tuple[str, list[set[Link]]]:
    text, links = "", []
    for number, token in enumerate(engine.generate(engine.encode(QUESTION), GREEDY)):
        text += token.text
        links.append(set(token.traffic.links))
        at_token(number)
    return text, links


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    engine = Engine(folder, Wishes(), open_devices=lambda _: ([], ""))
    try:
        return answer(engine)[0]
    finally:
        engine.close()


def test_a_card_with_room_holds_everything(folder: Path, expected: str) -> None:
    _, cards = card(256 << 20)
    engine = Engine(folder, Wishes(), open_devices=cards)
    text, links = answer(engine)
    assert engine.plan.vram_slots == 3 * 8
    assert "Card 9000" in engine.plan.sentence
    assert engine.plan.unknown == ""
    assert engine.plan.predicted is not None
    assert {Link.VRAM, Link.PCIE} <= engine.plan.ceilings_gbps.keys()
    assert text == expected
    assert all(Link.VRAM in one for one in links)
    engine.close()


def test_a_card_too_small_for_the_dense_part_stays_unused(folder: Path, expected: str) -> None:
    _, cards = card(64 << 10)
    engine = Engine(folder, Wishes(), open_devices=cards)
    assert engine.plan.vram_slots == 0
    text, links = answer(engine)
    assert text == expected
    assert not any(Link.VRAM in one for one in links)
    engine.close()


def test_a_limit_on_its_memory_is_kept_and_changes_no_answer(folder: Path, expected: str) -> None:
    accelerator, cards = card(256 << 20)
    free = accelerator.free_bytes()
    whole = Engine(folder, Wishes(), open_devices=cards)
    taken = vram_taken(whole.plan)
    whole.close()
    del whole
    engine = Engine(folder, Wishes(vram_limit=f"{taken - 100_000}B"), open_devices=cards)
    assert 2 <= engine.plan.vram_slots < 3 * 8
    assert engine.session._parts.experts._lanes.tiers[0].arena.num_slots == engine.plan.vram_slots  # type: ignore[attr-defined]
    assert free - accelerator.free_bytes() <= taken - 100_000
    assert answer(engine)[0] == expected
    engine.close()


def test_without_graphics_memory_no_card_is_opened(folder: Path, expected: str) -> None:
    """Its driver alone would take some hundred MB."""
    engine = Engine(folder, Wishes(vram_limit="0"), open_devices=lambda _: pytest.fail("it was opened"))
    assert engine.plan.vram_slots == 0
    assert answer(engine)[0] == expected
    engine.close()


def test_a_card_lost_in_an_answer_is_told_and_the_answer_goes_on(folder: Path, expected: str) -> None:
    accelerator, cards = card(256 << 20)
    engine = Engine(folder, Wishes(), open_devices=cards)
    text, links = answer(engine, lambda number: accelerator.lose() if number == 4 else None)
    assert text == expected
    assert Link.VRAM in links[1]
    assert Link.VRAM not in links[-1]
    assert "The graphics card is not used any more: Card 9000 is gone." in engine.notice
    assert engine.plan.vram_slots == 0
    assert answer(engine)[0] == expected
    engine.close()


def test_a_card_lost_while_loading_is_as_none(folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what had been taken for it is free before there is anything else."""
    accelerator, cards = card(256 << 20)
    free, before = accelerator.free_bytes(), list[tuple[bool, bool]]()
    ram: list[weakref.ref[object]] = []

    def gone(lanes: DeviceLanes, *_: object) -> None:
        ram.append(weakref.ref(lanes.ram))
        raise DeviceLost("it fell off the bus")

    def opened(*arguments: Any, **named: Any) -> Parts:
        before.extend((one() is None, accelerator.free_bytes() == free) for one in ram)
        return open_parts(*arguments, **named)

    monkeypatch.setattr("engine.parts.start_lanes", gone)
    monkeypatch.setattr("engine.engine.open_parts", opened)
    engine = Engine(folder, Wishes(), open_devices=cards)
    assert before == [(True, True)]
    assert "it fell off the bus" in engine.notice
    assert answer(engine)[0] == expected
    engine.close()


def test_what_was_learnt_of_misses_and_which_experts_were_hot_begin_the_next_run(folder: Path, tmp_path: Path) -> None:
    _, cards = card(256 << 20)
    engine = Engine(folder, Wishes(), data=tmp_path, open_devices=cards)
    answer(engine)
    heat, file = engine.session.heat(), engine._heat_file
    assert engine._notebook is not None
    assert engine._notebook.card(engine._source.footprint, "Card 9000")[0] is not None
    engine.close()
    assert len(heat) > 6, "of all experts that were used, those in VRAM among them"
    assert file is not None
    assert load_misses(file)["lanes"]["link"]["each"] > 0
    again = Engine(folder, Wishes(), data=tmp_path, open_devices=cards)
    tier = again.session._parts.experts._lanes.tiers[0]  # type: ignore[attr-defined]
    assert sum(tier.cache.lookup(*expert) is not None for expert in heat) >= len(heat) // 2, "they are there before a token"
    again.close()


def test_a_card_that_torch_sees_and_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = with_devices(probe(), [])
    usable = Gpu("Card 9000", GpuKind.NVIDIA, vram_free=8 << 30)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)

    def no_image(*_: object) -> None:
        raise DeviceLost("no kernel image is available for execution on the device")

    monkeypatch.setattr("engine.accelerators.TorchAccelerator", no_image)
    assert open_devices(machine) == ([], "")
    devices, said = open_devices(
        Machine(**{**{f: getattr(machine, f) for f in machine.__dataclass_fields__}, "gpus": (usable,)})
    )
    assert devices == []
    assert said.startswith("Card 9000 is there and cannot compute (no kernel image")


@pytest.mark.parametrize("text", ["", "lots", "8GB,fast", "8GB,-1", "8GB,1,2,3", "0", "8GB,1e9", "8GB,nan", "8GB,1e-300"])
def test_what_describes_no_card(text: str) -> None:
    with pytest.raises(EngineError):
        parse_simulation(text)


def test_a_simulated_card_tells_what_each_link_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.simulate_cli.open_kernels", lambda: (Reference(), ""))
    told = as_json(simulate(folder, parse_simulation("256MB,20,10"), Wishes()))
    assert told["hit_rates"]["VRAM"] > 0.9, "all experts fit, and the first tokens have brought them"
    assert sum(told["hit_rates"].values()) == pytest.approx(1)
    assert told["bytes_per_token"]["vram"] > 0
    with pytest.raises(EngineError, match="do not hold the dense weights"):
        simulate(folder, parse_simulation("64KB"), Wishes())
    with pytest.raises(EngineError, match="No graphics memory may be taken"):
        simulate(folder, parse_simulation("256MB"), Wishes(vram_limit="0"))
    with pytest.raises(EngineError, match="1KB of graphics memory is too little") as caught:
        simulate(folder, parse_simulation("256MB"), Wishes(vram_limit="1KB"))
    assert caught.value.code == "plan.vram_limit"


def test_a_card_whose_link_changes_bytes_is_not_used(folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(self: SimulatedAccelerator, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
        for source, target in pairs:
            target.copy_(source)
            target[0] ^= 1
        return 1e-6

    _, cards = card(256 << 20)
    monkeypatch.setattr(SimulatedAccelerator, "_move", lie)
    engine = Engine(folder, Wishes(), open_devices=cards)
    assert "gives back other bytes than it was sent" in engine.notice
    assert engine.plan.vram_slots == 0
    assert answer(engine)[0] == expected
    engine.close()
