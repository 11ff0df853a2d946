"""What is measured of a card, kept of it and foretold by it, over an accelerator made of ordinary memory."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.accelerators import with_devices
from engine.bench_formats import measure_formats
from engine.bench_pieces import Stopped, on_card
from engine.card_bench import PARTS
from engine.card_rates import CardRates, Lane, LaneCosts
from engine.config import Wishes
from engine.experts.vram import Device
from engine.hardware.probe import probe
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.reference import Reference
from engine.knowledge import Answer, Notebook, kind_of
from engine.measure import FORMATS, LAYERS, knowledge_of, measure_all, measure_card_of
from engine.meter import Link
from engine.plan.footprint import Footprint
from engine.plan.forecast import Knowledge, forecast
from engine.plan.plan import make_plan
from engine.plan.predict import NO_CORRECTION, Hits, decoded
from engine.protocol import Change, Plan
from engine.source import Source, inspect
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from engine.units import GB
from tests.helpers.rates import CARD, QWEN3_30B, RATES
from tests.helpers.tiny import write_mixtral

NAME = "Card 9000"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setattr("engine.rehearsal._CACHE_BYTES", 1 << 20)
    return inspect(write_mixtral(tmp_path / "model", torch.bfloat16))


def card(vram_bytes: int = 1 << 28) -> Device:
    return Device(
        SimulatedAccelerator(Simulation(vram_bytes, link_gbps=2.0), NAME), DeviceKernels(torch.device("cpu"), fallback=True)
    )


def test_rates_of_a_card_are_numbers_and_come_back_from_their_file(source: Source) -> None:
    device = card()
    free = device.accelerator.free_bytes()
    rates = measure_card_of(source, Reference(), device)
    assert rates.is_usable
    assert CardRates.from_json(rates.to_json()) == rates
    assert rates.expert_bytes == source.experts.expert_bytes
    assert rates.lanes.link.each >= 0.5 * rates.expert_bytes / 2e9, "the link gives 2 GB/s"
    assert device.accelerator.free_bytes() == free, "everything is given back"


def test_it_can_be_given_up(source: Source) -> None:
    with pytest.raises(Stopped):
        measure_card_of(source, Reference(), card(), should_stop=lambda: True)


def test_all_of_it_is_measured_and_noted(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that takes all the time there is leaves the CPU's figures as they are."""
    monkeypatch.setattr("engine.bench_formats._CACHE_BYTES", 1 << 20)
    monkeypatch.setattr("engine.bench_formats._ROWS", (1, 2))
    monkeypatch.setattr("engine.measure._LEAST_SECONDS", 0.1)
    monkeypatch.setattr("engine.measure.open_kernels", lambda: (Reference(), ""))
    monkeypatch.setattr("engine.measure.open_devices", lambda _: ([card(), card()], ""))
    book, stages = Notebook(tmp_path, with_devices(probe(), [card()])), list[str]()
    found = measure_all(source, tmp_path, book, 0.0, lambda stage, *_: stages.append(stage))
    assert list(dict.fromkeys(stages)) == [LAYERS, FORMATS, NAME]
    assert book.rates(source.footprint, tmp_path) == (found.rates, "")
    assert book.card(source.footprint, NAME) == (found.cards[NAME], "")
    assert set(book.kernels()) == set(found.formats)
    four = replace(source.footprint, weight_format="MXFP4")
    assert book.card(four, NAME)[0] is not None, "by the card's own kernels"


def test_a_card_without_room_is_no_obstacle(source: Source) -> None:
    known = knowledge_of(source, None, Reference(), card=card(1 << 14))
    assert known.rates is not None
    assert known.card is None
    assert known.unknown_card.startswith(f"{NAME} could not be measured: ")


class _Failing(DeviceKernels):
    """On a card that torch says is full, or lost, once its memory is read, which only a measurement does."""

    failure: RuntimeError

    def read(self, memory: torch.Tensor) -> int:
        raise self.failure


@pytest.mark.parametrize(("failure", "why"), [
    (torch.OutOfMemoryError("CUDA out of memory"), f"{NAME} has too little memory free to be measured"),
    (RuntimeError("CUDA error: device lost\nmore"), "CUDA error: device lost"),
])  # fmt: skip
def test_a_card_that_fails_while_it_is_measured_is_no_obstacle(source: Source, failure: RuntimeError, why: str) -> None:
    kernels = _Failing(torch.device("cpu"), fallback=True)
    kernels.failure = failure
    known = knowledge_of(source, None, Reference(), card=replace(card(), kernels=kernels))
    assert known.rates is not None
    assert known.card is None
    assert known.unknown_card == f"{NAME} could not be measured: {why}"


def test_figures_that_no_card_can_have_are_not_foretold_with(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that sees no time passing gives them."""
    broken = replace(CARD, lanes=LaneCosts(Lane(0.0, 0.0), CARD.lanes.cpu))
    monkeypatch.setattr("engine.measure.measure_card", lambda *_, **__: broken)
    known = knowledge_of(source, None, Reference(), card=card())
    assert known.card is None
    assert "no card can have" in known.unknown_card


@pytest.mark.parametrize("broken", [
    {}, {"lanes": {}}, {"lanes": {"link": {"fixed": 0, "each": 0}, "cpu": {"fixed": 0, "each": 1e-3}, "ram_each": 0}},
    {"vram_gbps": math.inf}, {"experts_by_rows": []}, {"dense_by_tokens": [[2, 1], [1, 1]]}, {"expert_bytes": 0}, {"layer_seconds": -1},
])  # fmt: skip
def test_a_file_that_says_nonsense_is_as_none(broken: dict[str, object]) -> None:
    assert CardRates.from_json(CARD.to_json()) == CARD
    assert CardRates.from_json(CARD.to_json() | broken if broken else broken) is None


def test_the_notebook_keeps_a_card_by_its_name_and_a_format_by_its_kernels(tmp_path: Path) -> None:
    machine = with_devices(probe(), [card()])
    book = Notebook(tmp_path, machine)
    assert book.knowledge(QWEN3_30B, tmp_path).card is None
    assert book.should_measure_card(QWEN3_30B, NAME)
    book.note_card(QWEN3_30B, NAME, CARD)
    assert not book.should_measure_card(QWEN3_30B, NAME)
    assert book.knowledge(QWEN3_30B, tmp_path).card == CARD
    assert book.card(QWEN3_30B, "another")[0] is None
    four = replace(QWEN3_30B, weight_format="MXFP4")
    assert book.card(four, NAME) == (None, "the graphics card has not been measured with MXFP4 yet")
    book.note_card_kernels(NAME, {"MXFP4": ((1.0, 123.0), (8.0, 99.0))})
    found, _ = book.card(four, NAME)
    assert found is not None
    assert (found.expert_gbps, found.dense_gbps) == (123.0, CARD.dense_gbps)


def test_rates_of_its_own_format_go_before_nearer_sizes(tmp_path: Path) -> None:
    book = Notebook(tmp_path, with_devices(probe(), [card()]))
    far = replace(QWEN3_30B, expert_bytes=QWEN3_30B.expert_bytes << 3)
    book.note_card(far, NAME, CARD)
    book.note_card(replace(QWEN3_30B, weight_format="MXFP4"), NAME, replace(CARD, expert_gbps=99.0))
    assert book.card(QWEN3_30B, NAME) == (CARD, "")


def test_answers_with_a_card_judge_its_rates_and_say_nothing_of_answers_without(tmp_path: Path) -> None:
    book = Notebook(tmp_path, with_devices(probe(), [card()]))
    book.note_rates(QWEN3_30B, tmp_path, RATES)
    book.note_card(QWEN3_30B, NAME, CARD)
    without = Answer(0.5, 0.8, 1.4, 100, str(kind_of(QWEN3_30B)), 10.0, 7.0)
    for number in range(3):
        book.note_answer("model", replace(without, seconds=10.0 + number))
    assert not book.should_measure_card(QWEN3_30B, NAME)
    for number in range(3):
        book.note_answer(
            "model", replace(without, ratio=2.0, seconds=20.0 + number, tokens_per_second=40.0, card=NAME, vram_share=0.3)
        )
    assert book.should_measure_card(QWEN3_30B, NAME)
    assert book.should_measure(QWEN3_30B, tmp_path), "the drive is in the same prediction"
    known = book.knowledge(QWEN3_30B, tmp_path, "model")
    assert (known.in_ram.correction.factor, known.on_card.correction.factor) == (1.4, 2.0)
    assert known.in_ram.speeds == ((0.5, 0.0, 7.0),) * 3
    assert known.on_card.speeds == ((0.5, 0.3, 40.0),) * 3
    book.note_card(QWEN3_30B, NAME, replace(CARD, seconds=100.0))
    assert not book.should_measure_card(QWEN3_30B, NAME), "the new rates have met no answer yet"
    assert book.knowledge(QWEN3_30B, tmp_path, "model").on_card.correction == NO_CORRECTION


def test_a_context_with_which_a_card_would_serve_has_no_price_while_the_card_is_not_measured() -> None:
    machine = replace(with_devices(probe(), [card(7 * GB)]), ram_total=128 * GB, ram_available=120 * GB)
    contexts = [make_plan(machine, QWEN3_30B, Wishes(context=context)).vram_slots > 0 for context in (40_960, 20_480)]
    assert contexts == [False, True]
    known = Knowledge(RATES, "")
    plan = forecast(machine, QWEN3_30B, Wishes(context=40_960), known)
    assert plan.predicted is not None
    assert not [gain for gain in plan.prices if gain.change is Change.CONTEXT]
    plan = forecast(machine, QWEN3_30B, Wishes(context=40_960), replace(known, card=CARD, unknown_card=""))
    assert [gain for gain in plan.prices if gain.change is Change.CONTEXT]


def test_kernels_of_a_card_are_measured_for_every_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench_formats._CACHE_BYTES", 1 << 20)
    monkeypatch.setattr("engine.bench_formats._ROWS", (1, 2))
    curves = measure_formats(on_card(card()), seconds=0.0)
    assert set(curves) == {"BF16", "FP8", "MXFP4", "NVFP4", "INT4"}


def _token(footprint: Footprint, vram_gb: float, hits: Hits, rates: CardRates = CARD) -> tuple[float, dict[Link, int]]:
    machine = replace(with_devices(probe(), [card(int(vram_gb * GB))]), ram_total=128 * GB, ram_available=120 * GB)
    plan = make_plan(machine, footprint, Wishes(context=2048))
    assert plan.vram_slots
    traffic = decoded(plan, footprint, RATES, hits, 1024, rates)
    return traffic.seconds, {link: use.bytes for link, use in traffic.links.items()}


def test_a_token_is_the_sum_of_what_each_link_moves() -> None:
    """Held against the same arithmetic written out for a layer that misses all of its experts, or none."""
    alone = replace(CARD, lanes=LaneCosts(Lane(0.0, 1e-3), Lane(0.0, 1.0)), expert_bytes=QWEN3_30B.expert_bytes)
    each, count = QWEN3_30B.expert_bytes, 48 * 8
    none, moved = _token(QWEN3_30B, 24, Hits(1.0, 1.0), alone)
    assert Link.PCIE not in moved
    assert Link.RAM not in moved
    all_gathered, moved = _token(QWEN3_30B, 24, Hits(0.0, 1.0), alone)
    assert moved[Link.PCIE] == count * each
    by_host = 48 * (CARD.layer_seconds - CARD.resident_layer_seconds)
    assert all_gathered - none == pytest.approx(48 * 8e-3 + by_host, rel=1e-6), "hits take no time beside as much afterwards"
    computed, moved = _token(QWEN3_30B, 24, Hits(0.0, 1.0), replace(alone, lanes=LaneCosts(Lane(0.0, 1.0), Lane(0.0, 2e-3))))
    assert moved[Link.RAM] == count * each
    assert computed - none == pytest.approx(48 * (16e-3 - 8 * each / CARD.expert_gbps / 1e9) + by_host, rel=1e-6)


def test_a_card_slower_than_the_cpu_has_a_range_all_the_same() -> None:
    """There more misses take less time."""
    slow = replace(CARD, expert_gbps=10.0, lanes=LaneCosts(Lane(0.0, 1.0), Lane(0.0, 0.2e-3)))
    seconds = [_token(QWEN3_30B, 24, Hits(rate, 1.0), slow)[0] for rate in (0.2, 0.9)]
    assert seconds[0] < seconds[1]
    machine = replace(with_devices(probe(), [card(24 * GB)]), ram_total=128 * GB, ram_available=120 * GB)
    low, high = _speed_of(forecast(machine, QWEN3_30B, Wishes(context=2048), Knowledge(RATES, "", slow, "")))
    assert 1 / low > 1.1 * max(seconds[0], 1 / high)


def _speed_of(plan: Plan) -> tuple[float, float]:
    assert plan.predicted_tokens_per_second is not None
    return plan.predicted_tokens_per_second


def test_the_better_lane_is_foretold() -> None:
    both = _token(QWEN3_30B, 24, Hits(0.5, 1.0))[0]
    for lanes in (LaneCosts(CARD.lanes.link, Lane(1.0, 1.0)), LaneCosts(Lane(1.0, 1.0), CARD.lanes.cpu)):
        assert both < _token(QWEN3_30B, 24, Hits(0.5, 1.0), replace(CARD, lanes=lanes))[0]


@pytest.mark.parametrize("has_rates", [True, False])
def test_the_measurement_of_a_card_is_part_of_the_same_progress(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_rates: bool
) -> None:
    monkeypatch.setattr("engine.bench.SECONDS", 0.1)
    book = Notebook(tmp_path, with_devices(probe(), [card()]))
    if has_rates:
        book.note_rates(source.footprint, source.checkpoint.folder, replace(RATES))
    told: list[tuple[int, int]] = []
    knowledge_of(source, book, Reference(), lambda *step: told.append(step), card())
    done, (total,) = [step[0] for step in told], {step[1] for step in told}
    assert done == sorted(done), "it never goes back"
    assert (done[0], done[-1]) == (0, total - 1)
    of_card = [step for step in done if step >= total - PARTS]
    assert len(set(of_card)) == PARTS, "a step for each of its parts"
    assert (total > PARTS) == (not has_rates)
    told.clear()
    knowledge_of(source, book, Reference(), lambda *step: told.append(step), card())
    assert told == [], "it is known now"
