"""Tokens as one recording, where every expert is in VRAM: the same logits, and what becomes of recordings that fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
import torch

from engine.captured import Captured, Record, Run, reach_of
from engine.config import KvType
from engine.experts.device_lanes import DeviceLanes
from engine.experts.trace import Geometry, Recorder
from engine.experts.vram import Device
from engine.kernels.reference import Reference
from engine.models.decoder import Decoder
from engine.session import Cancelled, Session
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.helpers.recorded import Graphs, Recordable
from tests.helpers.tiny import session_on, write_mixtral

PROMPT = torch.randint(3, 259, (20,), generator=torch.Generator().manual_seed(3)).tolist()
EXPERTS = 3 * 8
WINDOW = {"sliding_window": 6}


@pytest.fixture(scope="module", params=[{}, WINDOW], ids=["whole", "window"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("captured") / "model", **request.param)


@pytest.fixture(autouse=True)
def short_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.captured._LEAST_REACH", 24)
    monkeypatch.setattr("engine.captured._STEP", 8)


class Calls:
    """A `Record` that makes the calls again, and counts."""

    def __init__(self) -> None:
        self.made = self.repeated = 0

    def __call__(self, run: Run) -> Run:
        self.made += 1

        def again() -> torch.Tensor:
            self.repeated += 1
            return run()

        return again


@contextmanager
def recording(
    folder: Path, record: Record, kv_type: KvType = KvType.FP32, kernels: Reference | None = None
) -> Iterator[tuple[Session, Captured]]:
    card = Device(SimulatedAccelerator(Simulation(8 << 20)), kernels or Reference())
    with session_on(
        folder, devices=[card], vram_slots=EXPERTS, expert_ram="100%", kv_type=kv_type, prefill_chunk=64
    ) as (session, _):  # fmt: skip
        parts, lanes = session._parts, session._parts.experts._lanes
        assert isinstance(lanes, DeviceLanes)
        assert lanes.on_device is not None
        assert isinstance(parts.model, Decoder)
        every = {(layer, expert): 1.0 for layer in range(3) for expert in range(8)}
        lanes.warm(every, lambda wanted: session._parts.experts.bring(wanted, 60.0))
        parts.captured = Captured(parts.model, parts.kv, lanes.on_device, record)
        yield session, parts.captured


def answer(session: Session, steps: int, at_step: Callable[[int], None] = lambda _: None) -> list[torch.Tensor]:
    told = [session.sync(PROMPT)[0].clone()]
    for step in range(steps):
        at_step(step)
        told.append(session.step(int(told[-1].argmax()))[0].clone())
    return told


def expected(folder: Path, steps: int, kv_type: KvType = KvType.FP32) -> list[torch.Tensor]:
    with session_on(folder, expert_ram="100%", kv_type=kv_type, prefill_chunk=64) as (session, _):
        return answer(session, steps)


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_type", KvType)
def test_long_answers_are_the_same(folder: Path, kv_type: KvType) -> None:
    """Windows of 6 tokens keep 70 rows, which move to the front twice on the way."""
    calls = Calls()
    with recording(folder, calls, kv_type) as (session, captured):
        told = answer(session, 140)
        assert not captured.is_refused
        assert len(captured._steps) <= 4
    assert calls.made == len({reach_of(length, 256) for length in range(21, 161)}) == 9
    assert calls.repeated == 140 + calls.made, "each token once, and each recording once to be compared"
    assert_close(told, expected(folder, 140, kv_type))


@pytest.mark.parametrize("kv_type", KvType)
def test_what_is_recorded_needs_none_of_the_model(folder: Path, kv_type: KvType) -> None:
    """A card repeats its own calls alone: what a token leaves for its books has to come out of those."""
    graphs = Graphs()
    with recording(folder, graphs, kv_type, Recordable(graphs)) as (session, captured):
        told = answer(session, 60)
        for token in range(6):  # of which no recording has been made
            told.append(session.step(token + 3)[0].clone())
        assert not captured.is_refused
        _, traffic = session.step(9)
        assert (traffic.hits, traffic.vram_hits, traffic.misses) == (6, 6, 0)
        used = sum(session.heat().values())
    assert graphs.repeated == 67 + graphs.made
    warm = {(layer, expert): 1.0 for layer in range(3) for expert in range(8)}
    with session_on(folder, expert_ram="100%", kv_type=kv_type, prefill_chunk=64, heat=warm) as (session, _):
        theirs = answer(session, 60)
        theirs += [session.step(token + 3)[0] for token in range(6)]
        session.step(9)
        assert used == pytest.approx(sum(session.heat().values()))
    assert_close(told, theirs)


def test_a_recording_of_nothing_is_not_used(folder: Path) -> None:
    """As where the calls went to another card or stream than the recorded one: nothing is done again."""

    def hollow(run: Run) -> Run:
        y = run()
        return lambda: y

    with recording(folder, hollow) as (session, captured):
        told = answer(session, 6)
        assert captured.is_refused
    assert_close(told, expected(folder, 6))


def test_a_rewind_takes_an_earlier_recording(folder: Path) -> None:
    calls = Calls()
    with recording(folder, calls) as (session, _):
        first = answer(session, 12)
        made = calls.made
        second = answer(session, 12)
        assert calls.made == made
    assert_close(second, first)


def test_a_recording_that_fails_or_lies_is_not_used(folder: Path) -> None:
    def failing(run: Run) -> Run:
        raise RuntimeError("operation not permitted while capturing")

    def lying(run: Run) -> Run:
        return lambda: run() + 1

    theirs = expected(folder, 6)
    for record in (failing, lying):
        with recording(folder, record) as (session, captured):
            told = answer(session, 6)
            assert captured.is_refused
        assert_close(told, theirs)


def test_memory_that_a_recording_lacks_is_not_taken_from_the_experts(folder: Path) -> None:
    def greedy(run: Run) -> Run:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with recording(folder, greedy) as (session, captured):
        told = answer(session, 6)
        assert captured.is_refused
        lanes = session._parts.experts._lanes
        assert isinstance(lanes, DeviceLanes)
        assert lanes.tiers[0].budget.num_slots == EXPERTS
    assert_close(told, expected(folder, 6))


def test_the_meter_counts_each_expert_once(folder: Path) -> None:
    with recording(folder, Calls()) as (session, _):
        session.sync(PROMPT)
        for token in range(12):
            _, traffic = session.step(token + 3)
            assert (traffic.hits, traffic.vram_hits, traffic.misses) == (6, 6, 0)
        assert len(session.heat()) >= 6


def test_a_token_that_is_stopped_leaves_the_session_where_it_was(folder: Path) -> None:
    with recording(folder, Calls()) as (session, _):
        told = answer(session, 3)
        with pytest.raises(Cancelled):
            session.step(5, lambda: True)
        assert len(session.tokens) == len(PROMPT) + 3
        told.append(session.step(int(told[-1].argmax()))[0].clone())
    assert_close(told, expected(folder, 4))


def test_whoever_records_routing_hears_of_every_token(folder: Path) -> None:
    calls, file = Calls(), StringIO()
    with recording(folder, calls) as (session, _):
        session.sync(PROMPT)
        session.recorder = Recorder(file, Geometry("model", 8, 2, dict.fromkeys(range(3), 100)))
        session.step(5)
    assert calls.made == 0
    assert file.getvalue().count("\n") > 3


def test_reaches_grow_by_quarters_up_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert [reach_of(length, 100_000) for length in (1, 256, 257, 320, 321)] == [256, 256, 320, 320, 448]
    assert reach_of(90_000, 90_001) <= 90_001
    assert all(length <= reach_of(length, 1 << 17) <= 1.25 * length + 64 for length in range(300, 100_000, 997))
