"""Stream and logits against transformers, the independent reference, for every architecture: prefill, token by token, after
a rewind, and with as few experts in memory as run."""

from dataclasses import replace

import pytest

from engine.captured import Captured
from engine.checkpoint.index import open_checkpoint
from engine.config import KvType
from engine.experts.device_lanes import DeviceLanes
from engine.experts.vram import Device
from engine.judge import footprint_of
from engine.kernels.reference import Reference
from engine.models.decoder import Decoder
from engine.models.registry import SUPPORTED
from engine.source import inspect
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.golden.parity import ROWS, Golden, make_golden, measure
from tests.helpers.recorded import Graphs, Recordable
from tests.helpers.tiny import kernels_named, session_on

pytest.importorskip("transformers", reason="the reference for parity is not installed")
_CALL_BY_CALL = {
    "deepseek_v32",
    "gemma4",
    "gemma4_text",
    "glm_moe_dsa",
    "granitemoehybrid",
    "lfm2_moe",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
}
pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs


@pytest.fixture(scope="module", params=ROWS)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


def test_the_experts_matter(golden: Golden) -> None:
    difference = (golden.logits - golden.without_experts).norm() / golden.logits.norm()
    assert difference > 0.05, "a forgotten expert would go unnoticed"


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_passes_equal_the_reference(golden: Golden, kernels: str) -> None:
    errors = measure(golden, kernels_named(kernels))
    assert errors.largest < 1e-4, errors


def test_experts_from_disk_give_the_same(golden: Golden) -> None:
    errors = measure(golden, Reference(), slots=1)
    assert errors.largest < 1e-4, errors


def test_a_token_of_fixed_shapes_gives_the_same(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a card records: all experts there, and rows looked at that are not written yet. What is recorded asks the host for
    nothing. Architectures with a state, with entries of several tokens or a search among them are computed call by call."""
    monkeypatch.setattr("engine.captured._LEAST_REACH", 26)
    monkeypatch.setattr("engine.captured._STEP", 3)
    graphs = Graphs()
    card = Device(SimulatedAccelerator(Simulation(64 << 20)), Recordable(graphs))
    footprint = inspect(golden.folder).footprint
    with session_on(golden.folder, devices=[card], vram_slots=footprint.experts_total, expert_ram="100%") as (session, _):
        parts, runner = session._parts, session._parts.experts
        lanes = runner._lanes
        assert isinstance(lanes, DeviceLanes)
        assert lanes.on_device is not None
        layers = inspect(golden.folder).experts.layers
        every = {(layer, expert): 1.0 for layer in layers for expert in range(footprint.num_experts)}
        lanes.warm(every, lambda wanted: runner.bring(wanted, 60.0))
        session.sync(golden.tokens[:24])
        if not isinstance(parts.model, Decoder):
            pytest.skip(f"{golden.row.model_type} has a frame of its own, and is computed call by call")
        parts.captured = Captured(parts.model, parts.kv, lanes.on_device, graphs)
        for at in range(24, len(golden.tokens)):
            logits, traffic = session.step(golden.tokens[at])
            assert (logits - golden.logits[at]).norm() / golden.logits[at].norm() < 1e-4
            assert traffic.vram_hits == traffic.hits == footprint.num_moe_layers * footprint.top_k
        assert parts.captured.is_refused == ((golden.row.published or golden.row.model_type) in _CALL_BY_CALL)
        assert graphs.made == (0 if parts.captured.is_refused else 3), "one for each reach"


def test_every_architecture_has_a_row() -> None:
    assert {row.published or row.model_type for row in ROWS.values()} >= SUPPORTED


def test_a_verdict_before_the_download_knows_the_cache(golden: Golden) -> None:
    told, exact = footprint_of(open_checkpoint(golden.folder)), inspect(golden.folder).footprint
    for context in (30, 5000):
        assert told.kv_bytes(context, 64) == exact.kv_bytes(context, 64)
        assert told.kv_read_bytes(context) == exact.kv_read_bytes(context)
    assert told.state_bytes == exact.state_bytes
    assert told.top_k == exact.top_k
    assert told.expert_bytes == exact.expert_bytes


def test_the_cache_is_as_large_as_the_plan_says(golden: Golden) -> None:
    with session_on(golden.folder) as (session, _):
        session.sync(golden.tokens)
        footprint = replace(inspect(golden.folder).footprint, kv_type=KvType.FP32)
        assert session._parts.kv.read_bytes(1) == footprint.kv_read_bytes(len(golden.tokens) + 1)
