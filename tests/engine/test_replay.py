import json
import random
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest

from engine.cli import main
from engine.experts.baselines import belady_hits, belady_hits_by_layer
from engine.experts.heat import load_heat, save_heat
from engine.experts.trace import Recorder
from engine.meter import Phase
from tests.helpers.routes import geometry, topics

Uses = list[tuple[int, tuple[int, ...]]]


def best_hits(uses: Uses, num_slots: int) -> int:
    """By trying every choice of experts to keep after each use."""

    @cache
    def best(index: int, held: frozenset[tuple[int, int]]) -> int:
        if index == len(uses):
            return 0
        layer, experts = uses[index]
        needed = {(layer, expert) for expert in experts}
        there = held | needed
        keeps = combinations(sorted(there), min(num_slots, len(there)))
        return len(held & needed) + max(best(index + 1, frozenset(keep)) for keep in keeps)

    return best(0, frozenset())


@pytest.mark.parametrize("seed", range(8))
def test_the_bound_is_the_best_that_any_choice_reaches(seed: int) -> None:
    rng = random.Random(seed)
    uses: Uses = [(step % 2, tuple(rng.sample(range(3), 2))) for step in range(9)]
    for num_slots in (1, 2, 3, 4):
        assert belady_hits(uses, num_slots) == best_hits(uses, num_slots)
    by_layer = sum(best_hits([use for use in uses if use[0] == layer], 2) for layer in (0, 1))
    assert belady_hits_by_layer(uses, 4) == by_layer


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    shape, path = geometry(4, 6), tmp_path / "made.csv"
    with path.open("w", encoding="utf-8") as file:
        recorder = Recorder(file, shape)
        for routing in topics(4, 60):
            recorder.begin(0, Phase.DECODE, routing.step)
            recorder.add(routing.layer, [routing.experts], [routing.weights])
    return path


def test_one_capacity_prints_one_object(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "replay", str(trace_file), "--capacity", "20%", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["policy"] == "heat"
    assert found["slots"] == int(0.2 * 4 * 128)
    assert 0 < found["hit_rate"] < found["belady_by_layer"] <= found["belady"] < 1
    assert found["bytes"] == round((1 - found["hit_rate"]) * 60 * 4 * 6) * 1000


def test_a_table_has_every_policy_and_capacity(trace_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "replay", str(trace_file), "--capacity", "100KB", "--capacity", "50%"]) == 0
    head, first, second, _ = capsys.readouterr().out.splitlines()
    assert [name in head for name in ("heat", "global-lru", "layer-lru", "layer-lfu", "Belady")] == [True] * 5
    assert "100KB" in first
    assert "50%" in second


@pytest.mark.parametrize(("capacity", "sentence"), [("0.1%", "holds 0 of 512 experts"), ("lots", "not an amount")])
def test_a_capacity_that_cannot_be_played_is_one_sentence(
    trace_file: Path, capacity: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trace", "replay", str(trace_file), "--capacity", capacity]) == 1
    assert sentence in capsys.readouterr().err


def test_heat_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    heat = {(0, 5): 1.25, (3, 127): 1e-12, (3, 0): 7.5}
    path = tmp_path / "new folder" / "heat.json"
    assert save_heat(path, {(0, 1): 1.0})
    assert save_heat(path, heat)
    assert load_heat(path, range(4), 128) == heat
    assert [item.name for item in path.parent.iterdir()] == ["heat.json"]
    assert load_heat(path, range(3), 128) == {}, "of a model with more layers"
    assert load_heat(path, range(4), 64) == {}, "of a model with more experts"


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"\xff\xfe", b'{"version":1,"heat":{"0":{"1":', b'{"version":1,"heat":{"0":{"1":"hot"}}}',
     b'{"version":1,"heat":{"0":{"1":NaN}}}', b'{"version":1,"heat":{"x":{"1":1}}}', b'{"version":2,"heat":{}}',
     b'{"version":1,"heat":[1]}', b"[" * 100_000],
)  # fmt: skip
def test_damaged_heat_is_a_cold_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "heat.json"
    path.write_bytes(content)
    assert load_heat(path, range(4), 128) == {}


def test_heat_that_cannot_be_saved_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "heat.json").mkdir()
    assert not save_heat(tmp_path / "heat.json", {(0, 1): 1.0})
    assert [item.name for item in tmp_path.iterdir()] == ["heat.json"]
