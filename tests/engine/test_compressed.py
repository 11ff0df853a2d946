"""DeepSeek-V4: entries compressed in pieces against their own definition, attention in small pieces against transformers, what
a timeline keeps, and what its checkpoints may not hold."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.index import open_checkpoint
from engine.config import KvType
from engine.errors import EngineError
from engine.experts.trace import Recorder
from engine.experts.vram import Device
from engine.judge import footprint_of, footprint_of_catalogue
from engine.kernels.reference import Reference
from engine.kv.cache import KvCache
from engine.models import compressed_attention
from engine.models.compressor import compress
from engine.parts import open_parts
from engine.plan.footprint import Compressed, Footprint
from engine.session import Session
from engine.source import inspect
from engine.store.catalogue import read_catalogue
from engine.tiers.disk import DiskReader
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.golden.parity import Golden, make_golden, measure
from tests.helpers.encodings import Tensors
from tests.helpers.tiny import session_on

pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
_DIM = 5


def _means(values: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Every complete entry from all tokens at once, in fp64: a softmax over its own tokens, and where there are two sets of
    numbers over the tokens before them too."""
    ratio, overlaps = len(bias), values.shape[1] == 2 * _DIM
    means = []
    for entry in range(len(values) // ratio):
        own = range(entry * ratio, (entry + 1) * ratio)
        members = [(token, slice(values.shape[1] - _DIM, None)) for token in own]
        if overlaps and entry:
            members += [(token - ratio, slice(0, _DIM)) for token in own]
        found = torch.stack([(logits[token] + bias[token % ratio])[part] for token, part in members]).double()
        shares = found.softmax(dim=0)
        means.append((shares * torch.stack([values[token][part] for token, part in members]).double()).sum(dim=0))
    return torch.stack(means)


@pytest.mark.parametrize("cuts", [(), (1,), (3, 4, 5), (4, 8), (2, 9, 10, 17), tuple(range(1, 23))])
@pytest.mark.parametrize(("ratio", "parts"), [(4, 2), (4, 1), (7, 1), (2, 2)])
def test_entries_do_not_depend_on_where_passes_end(ratio: int, parts: int, cuts: tuple[int, ...]) -> None:
    """Logits far from 0, also all of them below it, where sums that began at 0 would vanish."""
    torch.manual_seed(0)
    count, width = 23, parts * _DIM
    for shift in (0.0, -300.0, 300.0):
        values, logits, bias = torch.randn(count, width), 20 * torch.randn(count, width) + shift, torch.randn(ratio, width)
        now, made = torch.zeros(3, width), []
        for first, last in zip((0, *cuts), (*cuts, count), strict=True):
            following = torch.full_like(now, float("nan"))
            made.append(compress(values[first:last], logits[first:last], bias, first, _DIM, now, following))
            now = following
        torch.testing.assert_close(torch.cat(made).double(), _means(values, logits, bias), atol=1e-5, rtol=1e-5)


def test_a_published_models_cache_by_hand() -> None:
    """DeepSeek-V4-Flash in 16 bits: 21 layers with 512 + 128 numbers for 4 tokens, 20 with 512 for 128, windows in all 43."""
    model = next(model for model in read_catalogue() if model.name == "DeepSeek-V4-Flash")
    (_, form, nbytes), *_ = model.releases
    shape = footprint_of_catalogue(model, form, nbytes)
    windows = 43 * 512 * 2 * (128 + 512 + 4 * 128)
    assert shape.kv_bytes(131072, 512) == windows + 21 * 640 * 2 * 131072 // 4 + 20 * 512 * 2 * 131072 // 128
    read = 43 * 128 * 512 + 21 * (512 * 512 + 128 * 131072 // 4) + 20 * 512 * 131072 // 128
    assert shape.kv_read_bytes(131072) == 2 * read
    assert shape.kv_read_bytes(1000) == 2 * 512 * (43 * 128 + 21 * 250 + 20 * 7), "all of few entries, and none is chosen"


@pytest.mark.parametrize("kv_type", KvType)
def test_memory_for_entries(kv_type: KvType) -> None:
    kept = Compressed(4, (40, 12), 3)
    cache = KvCache(2, 1, 20, 101, kv_type=kv_type, compressed=(None, kept))
    wide, narrow = cache.compressed(1)
    assert wide.shape[:2] == narrow.shape[:2] == (1, 25)
    assert wide.nbytes + narrow.nbytes == kept.nbytes(101, kv_type) == 25 * (kv_type.row_bytes(40) + kv_type.row_bytes(12))
    wide.fill_(1)
    narrow.fill_(2)
    assert bool((wide == 1).all()), "they do not lie on one another"


@pytest.fixture(scope="module", params=["deepseek_v4", "deepseek_v4, as published"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    pytest.importorskip("transformers", reason="the reference for parity is not installed")
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("numbers", [1, 100, 1000])
def test_small_pieces_give_the_same(golden: Golden, numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long prompts and contexts need them: queries, gathered keys and an indexer's logits in pieces."""
    monkeypatch.setattr(compressed_attention, "_AT_ONCE", numbers)
    monkeypatch.setattr(compressed_attention, "_KEYS_AT_ONCE", numbers)
    kernels = _Watched()
    assert measure(golden, kernels).largest < 1e-4
    queries = {heads // 4 for heads in kernels.heads}
    assert max(queries) == {1: 1, 100: 1, 1000: 15}[numbers], "of 4 heads with 16 numbers each, over some keys"


class _Watched(Reference):
    """Knows how many heads each call of attention was over."""

    def __init__(self) -> None:
        super().__init__()
        self.heads: set[int] = set()

    def attention(self, q: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        self.heads.add(q.shape[0] * q.shape[1])
        return super().attention(q, *arguments, **named)


def test_experts_known_by_a_tokens_number_are_foretold(golden: Golden) -> None:
    with session_on(golden.folder) as (session, _):
        guess = session._parts.experts._look_ahead
        hashed = [layer for layer in range(1, 6) if session._parts.model._blocks[layer]._feed_forward._bias is None]  # type: ignore[attr-defined]
        assert hashed, "a layer with one before it"
        session.sync(golden.tokens[:9])
        for token in golden.tokens[9:15]:
            session.recorder = recorder = _Kept()
            session.step(token)
            foretold = {layer: {expert for _, expert in guess(layer - 1, torch.zeros(1, 32))} for layer in hashed}
            assert foretold == {layer: recorder.asked[layer] for layer in hashed}


class _Kept(Recorder):
    def __init__(self) -> None:
        self.asked: dict[int, set[int]] = {}

    def begin(self, *_: object) -> None: ...

    def add(self, layer: int, ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> None:
        self.asked[layer] = set(ids[-1])


def test_an_embedding_left_on_disk_does_not_change_the_experts(golden: Golden) -> None:
    """The tokens' places in what is in memory are not their numbers."""
    with session_on(golden.folder) as (session, plan):
        expected = session.sync(golden.tokens[:30])[0]
    source, reader = inspect(golden.folder), DiskReader()
    try:
        parts = open_parts(source, replace(plan, dense_bytes=source.footprint.dense_bytes - 1), reader, Reference())
        assert parts.rows is not None
        torch.testing.assert_close(Session(parts, reader).sync(golden.tokens[:30])[0], expected, atol=0, rtol=0)
    finally:
        reader.close()


@pytest.mark.parametrize("vram_slots", [48, 13])
def test_experts_on_a_card_give_the_same(golden: Golden, vram_slots: int) -> None:
    def answer(**placed: Any) -> list[torch.Tensor]:
        with session_on(golden.folder, **placed) as (session, _):
            return [session.sync(golden.tokens[:20])[0], *(session.step(token)[0] for token in golden.tokens[20:])]

    card = Device(SimulatedAccelerator(Simulation(8 << 20), "card"), Reference())
    expected, ours = answer(), answer(devices=[card], vram_slots=vram_slots, expert_ram="34%")
    for left, right in zip(ours, expected, strict=True):
        torch.testing.assert_close(left, right, atol=0, rtol=0)


Change = Callable[[Tensors], Tensors]


def _without(name: str) -> Change:
    return lambda tensors: {other: tensor for other, tensor in tensors.items() if other != name}


def _with(name: str, tensor: torch.Tensor) -> Change:
    return lambda tensors: tensors | {name: tensor}


_REFUSED: dict[str, tuple[Change, str, str]] = {
    "a compressor in a layer without": (
        _with("layers.0.attn.compressor.wkv.weight", torch.ones(16, 32)), "checkpoint.surplus_tensor", "layers.0.attn.compressor.wkv",
    ),
    "an indexer in a layer that sees all": (
        _with("layers.3.attn.indexer.wq_b.weight", torch.ones(8, 8)), "checkpoint.surplus_tensor", "layers.3.attn.indexer.wq_b",
    ),
    "a table where experts are scored": (
        _with("layers.4.ffn.gate.tid2eid", torch.zeros(128, 2, dtype=torch.int64)), "checkpoint.surplus_tensor", "layers.4.ffn.gate.tid2eid",
    ),
    "no table": (_without("layers.0.ffn.gate.tid2eid"), "checkpoint.missing_tensor", "layers.0.ffn.gate.tid2eid"),
    "no bias": (_without("layers.4.ffn.gate.bias"), "checkpoint.missing_tensor", "layers.4.ffn.gate.e_score_correction_bias"),
    "no sinks": (_without("layers.2.attn.attn_sink"), "checkpoint.missing_tensor", "layers.2.attn.attn_sink"),
    "no streams": (_without("hc_head_fn"), "checkpoint.missing_tensor", "hc_head_fn"),
    "a table of numbers with a point": (_with("layers.0.ffn.gate.tid2eid", torch.zeros(128, 2)), "checkpoint.dtype", "tid2eid"),
    "a table of another vocabulary": (
        _with("layers.0.ffn.gate.tid2eid", torch.zeros(64, 2, dtype=torch.int64)), "checkpoint.shape", "tid2eid",
    ),
    "positions of another ratio": (_with("layers.2.attn.compressor.ape", torch.zeros(8, 32)), "checkpoint.shape", "compressor.ape"),
    "other streams": (_with("layers.1.hc_ffn_fn", torch.zeros(24, 96)), "checkpoint.shape", "hc_ffn_fn"),
    "one tensor by two names": (
        _with("model.layers.0.attn.wkv.weight", torch.zeros(16, 32)), "checkpoint.duplicate_tensor", "layers.0.attn.wkv",
    ),
    "a layer more": (_with("layers.6.attn_norm.weight", torch.ones(32)), "model.bad_config", "num_hidden_layers 6"),
}  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers", reason="it makes the checkpoint")
    return make_golden("deepseek_v4, as published", tmp_path_factory.mktemp("published")).folder


def _changed(published: Path, folder: Path, change: Change) -> Path:
    folder = shutil.copytree(published, folder)
    tensors = {name: tensor.contiguous() for name, tensor in change(load_file(folder / "model.safetensors")).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", _REFUSED)
def test_what_a_checkpoint_may_not_lack_or_hold(name: str, published: Path, tmp_path: Path) -> None:
    change, code, told = _REFUSED[name]
    with pytest.raises(EngineError) as caught:
        inspect(_changed(published, tmp_path / "changed", change))
    assert caught.value.code == code
    assert told in caught.value.text


@pytest.mark.parametrize("number", [-1, 8])
def test_a_table_of_experts_that_do_not_exist(number: int, published: Path, tmp_path: Path) -> None:
    table = torch.zeros(128, 2, dtype=torch.int64)
    table[77, 1] = number
    folder = _changed(published, tmp_path / "changed", _with("layers.1.ffn.gate.tid2eid", table))
    with pytest.raises(EngineError, match=r"tid2eid in model.safetensors .* 0 to 7 belong"), session_on(folder):
        pass


def test_what_guesses_further_tokens_is_not_loaded(published: Path, tmp_path: Path) -> None:
    ours = inspect(published)
    assert any(name.startswith("mtp.") for name in open_checkpoint(published).tensors)
    assert not any(ref.name.startswith("mtp.") for ref in ours.dense.refs)
    fewer = _changed(
        published,
        tmp_path / "fewer",
        lambda tensors: {name: one for name, one in tensors.items() if not name.startswith("mtp.")},
    )
    assert _needs(inspect(fewer).footprint) == _needs(ours.footprint) == _needs(footprint_of(open_checkpoint(published)))


def _needs(footprint: Footprint) -> tuple[int, int, int]:
    return footprint.dense_bytes, footprint.experts_total, footprint.kv_bytes(4096, 512)


def test_keys_that_contradict_one_another(published: Path) -> None:
    values = json.loads((published / "config.json").read_text())
    read = inspect(published).architecture.load().Config.read
    assert read(values, "tiny").kinds[2:4] == ("compressed_sparse_attention", "heavily_compressed_attention")
    kinds = ["sliding_attention"] * 6
    for changes, told in (
        ({"layer_types": kinds}, "layer_types and compress_ratios"),
        ({"mlp_layer_types": ["moe"] * 6}, "mlp_layer_types and num_hash_layers"),
        ({"compress_rates": {"compressed_sparse_attention": 8}}, "compress_rates are (8, 128)"),
        ({"partial_rotary_factor": 0.25}, "qk_rope_head_dim is 8, and partial_rotary_factor makes it 4"),
        ({"rope_parameters": {"compress": {"rope_theta": 5.0}}}, "in rope_parameters 10000.0 and 5.0"),
        ({"rope_parameters": {"main": {"rope_theta": 5.0}}}, "in rope_parameters 5.0 and 160000.0"),
        ({"rope_parameters": {"main": {"rope_type": "yarn"}}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {"main": "none"}}, "rotary embedding"),
    ):
        with pytest.raises(EngineError) as caught:
            read(values | changes, "tiny")
        assert told in caught.value.text
