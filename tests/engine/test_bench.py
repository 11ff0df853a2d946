"""The bench over a tiny model: every figure is one, it can be given up, and it takes no more memory than it may."""

from pathlib import Path

import pytest
import torch

from engine.bench_formats import measure_formats
from engine.bench_pieces import Stopped, layer_seconds_by_bytes, on_cpu
from engine.errors import EngineError
from engine.kernels.reference import Reference
from engine.measure import measure
from engine.rates import Rates
from engine.rehearsal import Rehearsal, drawn_memory
from engine.source import inspect
from engine.tiers.disk import DiskReader
from tests.golden.parity import make_golden
from tests.helpers.tiny import kernels_named, write_mixtral
from tests.perf.shapes import SHAPES
from tests.perf.synthetic import make


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_mixtral(tmp_path / "tiny", torch.bfloat16)


def test_rates_are_numbers_and_come_back_from_their_file(tiny: Path) -> None:
    steps: list[tuple[int, int]] = []
    rates = measure(inspect(tiny), Reference(), 0.02, lambda done, total: steps.append((done, total)))
    assert rates.is_usable
    assert Rates.from_json(rates.to_json()) == rates
    assert steps == [(number, steps[0][1]) for number in range(len(steps))], "progress counts up"
    assert len(steps) <= steps[0][1]


class _Clock:
    """Goes on by itself with every look at it, as on a computer of some speed."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 0.0, step

    def perf_counter(self) -> float:
        self.now += self._step
        return self.now

    def time(self) -> float:
        return 1.0


def test_the_time_is_kept_however_little_of_it_there_is(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect(tiny)
    for module in ("engine.bench", "engine.rehearsal"):
        monkeypatch.setattr(f"{module}._CACHE_BYTES", 1 << 20)

    def taken(seconds: float) -> float:
        clock = _Clock(0.01)
        monkeypatch.setattr("engine.bench.time", clock)
        monkeypatch.setattr("engine.bench_pieces.time", clock)
        monkeypatch.setattr("engine.rehearsal.time", clock)
        assert measure(source, Reference(), seconds).is_usable
        return clock.now

    least = taken(0.0)
    assert least < 2.5, "once through everything, on a computer that takes 10 ms for each piece"
    for seconds in (least, 2 * least, 5 * least):
        assert taken(seconds) < 1.1 * seconds


def test_formats_keep_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock(0.01)
    for module in ("engine.bench_formats", "engine.bench_pieces"):
        monkeypatch.setattr(f"{module}.time", clock)
    curves = measure_formats(on_cpu(kernels_named("native")), seconds=5.0)
    assert len(curves) == 5
    assert clock.now < 5.5


@pytest.mark.parametrize(
    ("shape", "encoding"), [("gpt-oss-20b", "mxfp4"), ("qwen3-30b-a3b", "f8_e4m3"), ("gpt-oss-20b", "bf16")]
)
def test_every_layout_of_experts_can_be_rehearsed(shape: str, encoding: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", SHAPES[shape].small(), encoding, 2)
    assert measure(inspect(folder), kernels_named("native"), 0.02).is_usable


def test_whoever_asked_may_stop_it(tiny: Path) -> None:
    calls = []

    def should_stop() -> bool:
        calls.append(1)
        return len(calls) > 3

    with pytest.raises(Stopped):
        measure(inspect(tiny), Reference(), 0.02, should_stop=should_stop)
    assert len(calls) == 4


def test_misses_are_as_asked_for(tiny: Path) -> None:
    reader = DiskReader()
    try:
        rehearsal = Rehearsal(inspect(tiny), reader, Reference(), 1 << 30)
        assert rehearsal.decode(0.0, 0.01).misses == 0
        all_missed = rehearsal.decode(1.0, 0.01)
        assert all_missed.misses == len(all_missed.seconds) * rehearsal.num_moe_layers * 2
    finally:
        reader.close()


def test_layers_without_experts_read_none(tmp_path: Path) -> None:
    """A first layer is dense, two have experts: held against the sizes in the files."""
    source, reader = inspect(make_golden("deepseek_v3, one group", tmp_path / "model").folder), DiskReader()
    try:
        rehearsal = Rehearsal(source, reader, Reference(), 1 << 30)
    finally:
        reader.close()
    layers, of_experts = rehearsal.num_layers, [item for items in source.experts.ranges.values() for item in items[:2]]
    assert layers > rehearsal.num_moe_layers == len(source.experts.ranges), "some layers are dense"
    dense = sum(ref.nbytes for ref in source.checkpoint.tensors.values() if ref.name.startswith("model.layers."))
    dense -= sum(item.nbytes for items in source.experts.ranges.values() for item in items)
    matrices = dense - sum(ref.nbytes for name, ref in source.dense.vectors.items() if name.startswith("model.layers."))
    assert source.footprint.top_k == 2
    expected = (matrices / 3.0 + sum(item.nbytes for item in of_experts) / 5.0) / 1e9 / layers
    assert layer_seconds_by_bytes(source, rehearsal, 3.0, 5.0) == pytest.approx(expected, rel=1e-9)


def test_too_little_memory_to_measure_is_told(tiny: Path) -> None:
    reader = DiskReader()
    try:
        with pytest.raises(EngineError, match="to be measured") as caught:
            Rehearsal(inspect(tiny), reader, Reference(), 1000)
        assert caught.value.code == "bench.memory"
    finally:
        reader.close()


def test_made_up_weights_are_finite_in_every_type() -> None:
    memory = drawn_memory(1 << 20)
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        values = memory.view(dtype).float()
        assert torch.isfinite(values).all()
        assert (values != 0).all()
    pages = memory.view(-1, 4096)
    assert len(torch.unique(pages, dim=0)) == len(pages), "equal pages may be merged by a host"


def test_every_format_has_a_rate() -> None:
    curves = measure_formats(on_cpu(kernels_named("native")))
    assert set(curves) == {"BF16", "FP8", "MXFP4", "NVFP4", "INT4"}
    assert all(gbps > 0 for curve in curves.values() for _, gbps in curve)
