"""What is kept of this computer and of answers: by machine, format and drive; corrected, distrusted, never in the way."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.checkpoint.index import Checkpoint
from engine.experts.heat import load_heat, save_heat
from engine.hardware.machine import Cpu, Machine
from engine.knowledge import Answer, Notebook, correction_of, fingerprint, kind_of, model_key
from engine.plan.locality import PUBLISHED, of_answers, of_heat
from engine.units import GB
from tests.helpers.rates import QWEN3_30B, RATES, notebook

MACHINE = Machine(64 * GB, 60 * GB, False, cpu=Cpu("one", 8, 16))
FP8 = replace(QWEN3_30B, weight_format="FP8")
SMALL = replace(QWEN3_30B, expert_bytes=5_308_416, hidden_size=576)  # the demo's matrices


def _answer(ratio: float, seconds: float = 10.0, share: float = 0.5, hit_rate: float = 0.8) -> Answer:
    return Answer(share, hit_rate, ratio, 100, str(kind_of(QWEN3_30B)), seconds, 10.0 / ratio)


def test_rates_belong_to_a_machine_and_a_format(tmp_path: Path) -> None:
    book = notebook(tmp_path, MACHINE, tmp_path, ("BF16",))
    assert book.rates(QWEN3_30B, tmp_path) == (RATES, "")
    assert not book.should_measure(QWEN3_30B, tmp_path)
    rates, why = book.rates(FP8, tmp_path)
    assert rates is None
    assert "kernels for FP8" in why
    assert book.should_measure(FP8, tmp_path)
    other = Notebook(tmp_path, replace(MACHINE, cpu=Cpu("another", 8, 16)))
    assert other.rates(QWEN3_30B, tmp_path) == (None, "this computer has not been measured yet")
    assert Notebook(tmp_path, replace(MACHINE, ram_available=GB)).rates(QWEN3_30B, tmp_path)[0] == RATES, (
        "free memory is no change"
    )


def test_a_format_without_a_model_takes_the_kernels_own_rates(tmp_path: Path) -> None:
    book = notebook(tmp_path, MACHINE, tmp_path, ("BF16",))
    book.note_kernels({"FP8": ((1.0, 17.0), (16.0, 5.0))})
    rates, _ = book.rates(FP8, tmp_path)
    assert rates is not None
    assert (rates.expert_gbps, rates.experts_by_rows) == (17.0, ((1.0, 17.0), (16.0, 5.0)))
    assert rates.disk_gbps == RATES.disk_gbps


def test_small_matrices_say_nothing_of_large_ones(tmp_path: Path) -> None:
    """The demo is measured when it is loaded: a large model of its format keeps its own rates."""
    book = notebook(tmp_path, MACHINE, tmp_path, ("BF16",))
    assert book.should_measure(SMALL, tmp_path)
    slow = replace(RATES, expert_gbps=7.0, dense_gbps=7.0, seconds=50.0)
    book.note_rates(SMALL, tmp_path, slow)
    assert book.rates(QWEN3_30B, tmp_path) == (RATES, "")
    assert book.rates(SMALL, tmp_path) == (slow, "")
    assert not book.should_measure(QWEN3_30B, tmp_path)
    for number in range(3):
        book.note_answer("demo", replace(_answer(2.0, 100.0 + number), kind=str(kind_of(SMALL))))
    assert book.should_measure(SMALL, tmp_path)
    assert not book.should_measure(QWEN3_30B, tmp_path), "answers with small matrices neither"


def test_a_model_of_a_new_size_takes_the_nearest_ones_rates(tmp_path: Path) -> None:
    book = Notebook(tmp_path, MACHINE)
    book.note_rates(SMALL, tmp_path, replace(RATES, layer_seconds=1.0, seconds=50.0))
    mixtral = replace(QWEN3_30B, expert_bytes=352_321_536, hidden_size=4096)
    assert book.rates(mixtral, tmp_path)[0] == replace(RATES, layer_seconds=1.0, seconds=50.0), "the only one of its format"
    book.note_rates(QWEN3_30B, tmp_path, RATES)
    assert book.rates(mixtral, tmp_path)[0] == RATES
    book.note_kernels({"BF16": ((1.0, 30.0),)})
    found = book.rates(mixtral, tmp_path)[0]
    assert found is not None
    assert (found.expert_gbps, found.layer_seconds) == (30.0, RATES.layer_seconds), "experts of quite another size"
    assert book.rates(replace(QWEN3_30B, expert_bytes=12_000_000), tmp_path) == (RATES, "")


def test_notes_without_a_size_are_as_none(tmp_path: Path) -> None:
    old = {"version": 2, "machines": {fingerprint(MACHINE): {"rates": {"BF16|disk": RATES.to_json()}}}}
    (tmp_path / "rates.json").write_text(json.dumps(old))
    book = Notebook(tmp_path, MACHINE)
    assert book.rates(QWEN3_30B, tmp_path)[0] is None
    book.note_rates(QWEN3_30B, tmp_path, RATES)
    assert book.rates(QWEN3_30B, tmp_path)[0] == RATES


@pytest.mark.parametrize(("ratios", "is_due"), [((1.3, 1.4, 1.5), True), ((0.7, 0.6, 0.75), True), ((1.3, 1.0, 1.5), False),
                                                ((1.4, 1.4), False), ((2.0, 2.0, 2.0, 1.1), False)])  # fmt: skip
def test_three_answers_that_disagree_make_it_measure_again(tmp_path: Path, ratios: tuple[float, ...], is_due: bool) -> None:
    book = notebook(tmp_path, MACHINE, tmp_path)
    for number, ratio in enumerate(ratios):
        book.note_answer("model", _answer(ratio, 10.0 + number))
    assert book.should_measure(QWEN3_30B, tmp_path) is is_due
    assert not book.should_measure(FP8, tmp_path), "another format's answers say nothing"
    book.note_rates(QWEN3_30B, tmp_path, replace(RATES, seconds=100.0))
    assert not book.should_measure(QWEN3_30B, tmp_path), "the new rates have met no answer yet"


def test_answers_correct_the_next_forecast_and_give_its_hit_rate(tmp_path: Path) -> None:
    book = notebook(tmp_path, MACHINE, tmp_path)
    assert book.knowledge(QWEN3_30B, tmp_path, "model").locality == PUBLISHED
    for ratio in (1.1, 1.2, 1.15):
        book.note_answer("model", _answer(ratio))
    known = book.knowledge(QWEN3_30B, tmp_path, "model")
    assert known.in_ram.correction == correction_of([_answer(1.1), _answer(1.2), _answer(1.15)])
    assert known.in_ram.correction.factor == 1.15
    assert known.locality.rates(0.5)[1] == pytest.approx(0.8)
    assert known.locality.low < known.locality.likely < known.locality.high
    assert book.knowledge(QWEN3_30B, tmp_path, "another").locality == PUBLISHED


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "nonsense", '{"version": 3, "machines": []}', '{"version": 3, "machines": {"a": 1}}']
)
def test_unusable_files_are_as_none(tmp_path: Path, content: str) -> None:
    for name in ("rates.json", "answers.json"):
        (tmp_path / name).write_text(content)
    book = Notebook(tmp_path, MACHINE)
    assert book.rates(QWEN3_30B, tmp_path)[0] is None
    assert book.answers("model") == []
    book.note_answer("model", _answer(1.0))
    assert len(book.answers("model")) == 1


@pytest.mark.parametrize("content", [[1], {"answers": {"model": 5}, "rates": 5, "kernels": {"BF16": [[1, 5], [1, 5]]}}])
def test_what_is_damaged_within_a_file_is_as_none(tmp_path: Path, content: object) -> None:
    for name in ("rates.json", "answers.json"):
        (tmp_path / name).write_text(json.dumps({"version": 3, "machines": {fingerprint(MACHINE): content}}))
    book = Notebook(tmp_path, MACHINE)
    assert book.rates(QWEN3_30B, tmp_path)[0] is None
    assert book.kernels() == {}
    assert book.answers("model") == []
    book.note_answer("model", _answer(1.0))
    book.note_rates(QWEN3_30B, tmp_path, RATES)
    assert len(book.answers("model")) == 1
    assert book.rates(QWEN3_30B, tmp_path)[0] == RATES


def test_damaged_figures_are_no_rates(tmp_path: Path) -> None:
    for change in (
        {"disk_gbps": 0.0},
        {"ram_gbps": float("inf")},
        {"ram_gbps": 5e-324},
        {"token_seconds": 1e308},
        {"experts_by_rows": ()},
        {"overlap": ((1.0, 1.0), (0.5, 2.0))},
        {"seconds": float("nan")},
        {"seconds": 1e300},
        {"seconds": -1.0},
    ):
        assert not replace(RATES, **change).is_usable


@pytest.mark.parametrize("part", ["rates", "kernels", "cards", "card_kernels"])
@pytest.mark.parametrize(
    "figure", [10**400, -1, "nine", None, [], {}, float("nan"), float("inf"), 1e308, True], ids=lambda value: repr(value)[:8]
)
def test_odd_figures_of_a_file_are_as_none(part: str, figure: object, tmp_path: Path) -> None:
    """Whatever stands in place of a number; in the names of kinds too."""
    card = "a card"
    kind = kind_of(QWEN3_30B)
    of_kind: dict[str, object] = {
        f"BF16/{'9' * 5000}/11|{card}": figure,
        f"{kind}|{card}": figure,
        f"BF16/x/11|{card}": figure,
        "": figure,
    }
    curves = {"BF16": [[1, figure]], "FP8": [[figure, 5.0], [2, 5.0]], "MXFP4": figure}
    content = {"rates": of_kind, "cards": of_kind, "kernels": curves, "card_kernels": {card: curves}}
    machines = {fingerprint(MACHINE): {part: content[part]}}
    (tmp_path / "rates.json").write_text(json.dumps({"version": 3, "machines": machines}))
    book = Notebook(tmp_path, MACHINE)
    assert book.rates(QWEN3_30B, tmp_path)[0] is None
    assert book.card(QWEN3_30B, card)[0] is None
    assert "MXFP4" not in book.kernels()
    assert "BF16" not in book.kernels() or figure is True, "true is one, as Python has it"
    assert book.should_measure(QWEN3_30B, tmp_path)
    assert book.should_measure_card(QWEN3_30B, card)
    book.knowledge(QWEN3_30B, tmp_path, "model")


@pytest.mark.parametrize("name", ["Tiny", "a" * 200, "\N{FIRE}" * 60, "ü" * 120])
def test_the_heat_of_a_long_name_has_a_file(name: str, tmp_path: Path) -> None:
    file = Notebook(tmp_path, MACHINE).heat_file(model_key(Checkpoint(tmp_path / name, {}, {})))
    assert save_heat(file, {(0, 1): 2.0})
    assert load_heat(file, range(1), 2) == {(0, 1): 2.0}
    assert file.name.startswith(name[:20])


def test_a_full_drive_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    book = Notebook(tmp_path / "file", MACHINE)
    book.note_answer("model", _answer(1.0))
    book.note_rates(QWEN3_30B, tmp_path, RATES)
    assert book.rates(QWEN3_30B, tmp_path)[0] is None


def test_heat_of_even_routing_is_no_locality_and_of_few_experts_it_is() -> None:
    import random

    draw = random.Random(1)

    def heat(weights: list[float]) -> dict[tuple[int, int], float]:
        found = {(layer, expert): 0.0 for layer in range(8) for expert in range(64)}
        for age in range(120):
            for layer in range(8):
                for expert in set(draw.choices(range(64), weights, k=8)):
                    found[layer, expert] += 0.5 ** (age / 20)
        return found

    even, few = of_heat(heat([1.0] * 64), 64), of_heat(heat([20.0] * 8 + [1.0] * 56), 64)
    assert even is not None
    assert few is not None
    assert even.likely < 1.5
    assert few.likely > 2.5
    assert of_heat({}, 64) is None


def test_a_model_all_in_memory_says_nothing_of_locality() -> None:
    assert of_answers([(1.0, 1.0)]) is None
    found = of_answers([(0.5, 0.5)])
    assert found is not None
    assert found.likely == pytest.approx(1.0)


def test_a_measurement_that_has_changed_nothing_is_not_made_again(tmp_path: Path) -> None:
    """What is off for a reason that no bench sees, answers correct."""
    book = Notebook(tmp_path, MACHINE)

    def answers(ratio: float, since: float) -> None:
        for number in range(3):
            book.note_answer("model", Answer(0.5, 0.8, ratio, 100, str(kind_of(QWEN3_30B)), since + number, 7.0))

    book.note_rates(QWEN3_30B, tmp_path, replace(RATES, seconds=100.0))
    answers(1.5, 110.0)
    assert book.should_measure(QWEN3_30B, tmp_path)
    book.note_rates(QWEN3_30B, tmp_path, replace(RATES, seconds=200.0))
    answers(1.55, 210.0)
    assert not book.should_measure(QWEN3_30B, tmp_path)
    answers(2.4, 220.0)
    assert book.should_measure(QWEN3_30B, tmp_path), "and now the computer is another one"
