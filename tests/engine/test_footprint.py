"""Bytes from headers: against the sum over a real header, and against what the makers' releases weigh."""

import json
import struct
from pathlib import Path

import pytest

from engine.checkpoint.index import Checkpoint, open_checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.judge import footprint_of, footprint_of_catalogue
from engine.plan.footprint import Footprint
from engine.source import inspect
from engine.store.catalogue import read_catalogue
from tests.golden.parity import ROWS, make_golden
from tests.perf import layout
from tests.perf.encode import ENCODINGS, Plain
from tests.perf.shapes import SHAPES, config_of
from tests.perf.synthetic import make

_CASES = (("qwen3-30b-a3b", "bf16"), ("qwen3-30b-a3b", "f8_e4m3"), ("gpt-oss-20b", "mxfp4"), ("mixtral-8x7b", "bf16"))


def _header_bytes(file: Path) -> dict[str, int]:
    """By tensor name, without the engine's own reader."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(struct.unpack("<Q", stream.read(8))[0]))
    return {name: item["data_offsets"][1] - item["data_offsets"][0] for name, item in header.items() if name != "__metadata__"}


@pytest.mark.parametrize(("shape", "encoding"), _CASES)
def test_bytes_are_the_headers_sum(shape: str, encoding: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "model", SHAPES[shape].small(), encoding, 2)
    sizes = _header_bytes(folder / "model.safetensors")
    experts = sum(size for name, size in sizes.items() if ".experts." in name)
    for found in (inspect(folder).footprint, footprint_of(open_checkpoint(folder))):
        routed = found.experts_total * found.expert_bytes
        assert found.model_bytes == sum(sizes.values())
        assert found.dense_bytes + routed == found.model_bytes
        assert 0 <= experts - routed <= experts / 64, "all but small parts that stay resident"
        assert found.looked_up_bytes == sizes["model.embed_tokens.weight"]
        assert found.head_bytes == sizes["lm_head.weight"]
        assert found.dense_read_bytes == found.dense_bytes - found.looked_up_bytes
        assert found.slot_bytes >= found.expert_bytes


def test_loader_and_headers_agree_on_what_a_plan_needs(tmp_path: Path) -> None:
    for shape, encoding in _CASES:
        folder = make(tmp_path / f"{shape}-{encoding}", SHAPES[shape].small(), encoding, 2)
        ours, loaders = footprint_of(open_checkpoint(folder)), inspect(folder).footprint
        same = [name for name in Footprint.__dataclass_fields__ if name not in ("slot_bytes", "weight_format")]
        assert {name: getattr(ours, name) for name in same} == {name: getattr(loaders, name) for name in same}, shape


@pytest.mark.parametrize("name", ROWS)
def test_every_architecture_weighs_what_its_header_says(name: str, tmp_path: Path) -> None:
    """Checkpoints as transformers saves them, for the loader and before a download alike."""
    folder = make_golden(name, tmp_path).folder
    sizes, config = _header_bytes(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    config |= config.get("text_config", {})
    unused = sum(size for tensor, size in sizes.items() if _is_unused(tensor, config["num_hidden_layers"]))
    loaders, ours = inspect(folder).footprint, footprint_of(open_checkpoint(folder))
    assert loaders.dense_bytes + loaders.experts_total * loaders.expert_bytes == sum(sizes.values()) - unused
    same = [field for field in Footprint.__dataclass_fields__ if field not in ("slot_bytes", "weight_format")]
    assert {field: getattr(ours, field) for field in same} == {field: getattr(loaders, field) for field in same}
    assert ours.slot_bytes >= loaders.slot_bytes, "headers do not tell how a file will be aligned"


def _is_unused(tensor: str, num_layers: int) -> bool:
    """What only guesses further tokens, or sees."""
    parts = tensor.split(".")
    beyond = "layers" in parts and int(parts[parts.index("layers") + 1]) >= num_layers
    return beyond or not {"mtp", "visual", "vision_tower", "embed_vision", "mm_projector"}.isdisjoint(parts)


_PUBLISHED = (
    ("gpt-oss-20b", "mxfp4", "gpt-oss-20b", "MXFP4"),
    ("gpt-oss-120b", "mxfp4", "gpt-oss-120b", "MXFP4"),
    ("qwen3-30b-a3b", "bf16", "Qwen3-30B-A3B", "BF16"),
    ("qwen3-30b-a3b", "f8_e4m3", "Qwen3-30B-A3B", "FP8"),
    ("mixtral-8x7b", "bf16", "Mixtral-8x7B", "BF16"),
)


@pytest.mark.parametrize(("shape", "encoding", "name", "form"), _PUBLISHED)
def test_the_whole_models_weigh_what_their_makers_publish(shape: str, encoding: str, name: str, form: str) -> None:
    """Full-size headers without weights, by the makers' names and shapes; published sizes from the catalogue."""
    published = next(size for model in read_catalogue() if model.name == name for _, one, size in model.releases if one == form)
    found = footprint_of(_header_alone(shape, encoding))
    assert found.dense_bytes + found.experts_total * found.expert_bytes == found.model_bytes
    assert abs(found.model_bytes / published - 1) < 0.01


def _header_alone(name: str, encoding: str) -> Checkpoint:
    shape, coded = SHAPES[name], ENCODINGS[encoding]
    plain = Plain(coded.dense_dtype)
    specs = [spec for spec, _ in layout.parts(shape, coded, coded if encoding == "f8_e4m3" else plain, "uniform", 0)]
    if encoding == "f8_e4m3":  # Qwen's FP8 releases quantise attention, and leave the head
        head = [spec for spec, _ in plain.parts("lm_head", shape.vocab, shape.hidden, 1.0, 0)]
        specs = [spec for spec in specs if not spec.name.startswith("lm_head")] + head
    offset, tensors = 0, {}
    for spec in specs:
        tensors[spec.name] = TensorRef(
            spec.name, Path("model.safetensors"), dtype=spec.dtype, shape=spec.shape, offset=offset, nbytes=spec.num_bytes
        )
        offset += spec.num_bytes
    return Checkpoint(Path(shape.name), config_of(shape), tensors)


def test_the_catalogues_geometry_gives_nearly_the_headers_bytes() -> None:
    for shape, encoding, name, form in _PUBLISHED:
        model = next(model for model in read_catalogue() if model.name == name)
        size = next(size for _, one, size in model.releases if one == form)
        told, exact = footprint_of_catalogue(model, form, size), footprint_of(_header_alone(shape, encoding))
        assert told.experts_total == exact.experts_total
        assert abs(told.expert_bytes / exact.expert_bytes - 1) < 0.01, name
        assert told.kv_bytes(8192, 512) == exact.kv_bytes(8192, 512)
        assert abs(told.dense_bytes - exact.dense_bytes) < 0.01 * exact.model_bytes, name


@pytest.mark.parametrize(
    "name", ["Qwen3-30B-A3B", "Qwen3-235B-A22B", "Mixtral-8x7B", "Qwen3.5-122B-A10B", "GLM-5.3-Flash", "Laguna XS.2",
             "Nemotron-3-Nano-30B-A3B", "LFM2-8B-A1B"],
)  # fmt: skip
def test_plain_releases_weigh_two_bytes_a_parameter(name: str) -> None:
    model = next(model for model in read_catalogue() if model.name == name)
    size = next(size for _, form, size in model.releases if form == "BF16")
    assert abs(size / (2 * model.total_params) - 1) < 0.01
