"""The benchmark's own files: published names and types, statistics as claimed, and a GGUF twin of the same values.

Expectations come from outside: the safetensors library reads the checkpoints, torch and the formats' definitions decode them,
`gguf` decodes the twin, llama.cpp and transformers compute it.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize
from safetensors import safe_open
from safetensors.torch import save_file

from engine.checkpoint.experts import map_experts
from engine.checkpoint.index import open_checkpoint
from engine.models.registry import find
from tests.helpers.tiny import session_on
from tests.perf import layout
from tests.perf.encode import ENCODINGS
from tests.perf.gguf_twin import write_twin
from tests.perf.layout import Routing, Scales
from tests.perf.routing import RoutingStatistics, check_routing, record_routing, routing_statistics, token_ids
from tests.perf.shapes import SHAPES, Shape
from tests.perf.synthetic import make

TINY = {name: SHAPES[name].small(layers=1, hidden=128, vocab=512) for name in ("qwen3-30b-a3b", "gpt-oss-20b", "mixtral-8x7b")}
QWEN, GPT_OSS, MIXTRAL = TINY.values()
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
PUBLISHED = {  # the third expert's down projection of Qwen3-30B-A3B, [128, 128] at this size
    "bf16": {"weight": ("BF16", [128, 128])},
    "f16": {"weight": ("F16", [128, 128])},
    "f32": {"weight": ("F32", [128, 128])},
    "f8_e4m3": {"weight": ("F8_E4M3", [128, 128]), "weight_scale_inv": ("BF16", [1, 1])},
    "mxfp4": {"weight": ("U8", [128, 64]), "weight_scale": ("U8", [128, 4])},
    "nvfp4": {
        "weight": ("U8", [128, 64]), "weight_scale": ("F8_E4M3", [128, 8]), "weight_scale_2": ("F32", []), "input_scale": ("F32", []),
    },
    "int4": {"weight_packed": ("I32", [128, 16]), "weight_scale": ("BF16", [128, 1]), "weight_shape": ("I64", [2])},
}  # fmt: skip


def header(folder: Path) -> dict[str, tuple[str, list[int]]]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: (part.get_dtype(), part.get_shape()) for name in file.keys() if (part := file.get_slice(name))}  # noqa: SIM118


def tensors(folder: Path, *names: str) -> list[torch.Tensor]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return [file.get_tensor(name) for name in names]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("attention", ["plain", "encoded"])
def test_own_experts_have_published_names(tmp_path: Path, encoding: str, attention: Any) -> None:
    folder = make(tmp_path / "model", QWEN, encoding, 1, attention=attention)
    found = header(folder)
    base = "model.layers.0.mlp.experts.2.down_proj."
    assert {name.removeprefix(base): what for name, what in found.items() if name.startswith(base)} == PUBLISHED[encoding]
    query = {name.rpartition(".")[2] for name in found if ".q_proj." in name}
    assert query == (set(PUBLISHED[encoding]) if attention == "encoded" else {"weight"})
    assert found["model.layers.0.mlp.gate.weight"][1] == [128, 128]
    config = json.loads((folder / "config.json").read_text())
    assert ("quantization_config" in config) == (encoding not in ("bf16", "f16", "f32"))


def test_mixtral_has_published_names(tmp_path: Path) -> None:
    found = header(make(tmp_path / "model", MIXTRAL, "bf16", 1))
    assert found["model.layers.0.block_sparse_moe.experts.7.w2.weight"] == ("BF16", [128, 128])
    assert found["model.layers.0.block_sparse_moe.gate.weight"] == ("BF16", [8, 128])


def test_gpt_oss_has_published_names(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", GPT_OSS, "mxfp4", 1)
    block = "model.layers.0."
    assert {name.removeprefix(block): what for name, what in header(folder).items() if ".mlp." in name or "sinks" in name} == {
        "mlp.experts.gate_up_proj_blocks": ("U8", [32, 256, 4, 16]), "mlp.experts.gate_up_proj_scales": ("U8", [32, 256, 4]),
        "mlp.experts.gate_up_proj_bias": ("BF16", [32, 256]), "mlp.experts.down_proj_blocks": ("U8", [32, 128, 4, 16]),
        "mlp.experts.down_proj_scales": ("U8", [32, 128, 4]), "mlp.experts.down_proj_bias": ("BF16", [32, 128]),
        "mlp.router.weight": ("BF16", [32, 128]), "mlp.router.bias": ("BF16", [32]), "self_attn.sinks": ("BF16", [2]),
    }  # fmt: skip
    plain = header(make(tmp_path / "plain", GPT_OSS, "bf16", 1))
    assert plain[f"{block}mlp.experts.gate_up_proj"] == ("BF16", [32, 128, 256])
    with pytest.raises(ValueError, match="published"):
        make(tmp_path / "other", GPT_OSS, "nvfp4", 1)


@pytest.mark.parametrize("encoding", ["bf16", "f8_e4m3"])
def test_qwen3_5_has_published_names(tmp_path: Path, encoding: str) -> None:
    """Those of transformers' own model, under the name of the text part; FP8 has a tensor for each expert's matrix."""
    transformers = pytest.importorskip("transformers")
    shape = SHAPES["qwen3.6-35b-a3b"].small(layers=4, hidden=128, vocab=512)
    folder = make(tmp_path / "model", shape, encoding, 4, attention="encoded" if encoding == "f8_e4m3" else "plain")
    text = json.loads((folder / "config.json").read_text())["text_config"]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING["qwen3_5_moe_text"](**text))
    wanted = {name.replace("model.", "model.language_model.", 1): list(part.shape) for name, part in model.state_dict().items()}
    found = {name: shape for name, (_, shape) in header(folder).items() if not name.endswith("_scale_inv")}
    if encoding == "f8_e4m3":
        for name in [name for name in wanted if ".experts." in name]:
            count, rows, cols = wanted.pop(name)
            base, is_fused = name.rpartition(".")[0], name.endswith("gate_up_proj")
            for expert in range(count):
                for part in ("gate_proj", "up_proj") if is_fused else ("down_proj",):
                    wanted[f"{base}.{expert}.{part}.weight"] = [rows // 2 if is_fused else rows, cols]
        scales = {name for name in header(folder) if name.endswith("_scale_inv")}
        assert "model.language_model.layers.0.mlp.experts.255.down_proj.weight_scale_inv" in scales
        assert "model.language_model.layers.3.self_attn.q_proj.weight_scale_inv" in scales
        assert not any("mlp.gate." in name or "in_proj_a" in name for name in scales)
    assert found == wanted
    assert shape.num_experts == 256


def test_a_checkpoint_depends_on_its_arguments_alone(tmp_path: Path) -> None:
    def data(name: str, encoding: str, seed: int) -> bytes:
        return (make(tmp_path / name, QWEN, encoding, 1, seed) / "model.safetensors").read_bytes()

    assert data("a", "mxfp4", 1) == data("b", "mxfp4", 1) != data("c", "mxfp4", 2)
    kept = (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns
    data("a", "mxfp4", 1)
    assert (tmp_path / "a" / "model.safetensors").stat().st_mtime_ns == kept, "the same recipe is reused"
    data("a", "bf16", 1)
    assert header(tmp_path / "a")["model.layers.0.mlp.experts.0.up_proj.weight"][0] == "BF16", "another one is not"
    routers = [tensors(tmp_path / name, "model.layers.0.mlp.gate.weight")[0] for name in ("a", "b")]
    assert torch.equal(*routers), "formats share what is plain in both, so that they route alike"


def test_every_expert_is_one_read(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make(tmp_path / "model", QWEN, "bf16", 1))
    experts = map_experts(checkpoint, find(checkpoint.config, "model").experts)
    assert experts.num_experts == 128
    assert all(len(expert.runs) == 1 for expert in experts.ranges[0])


def decoded(folder: Path, base: str) -> torch.Tensor:
    """A linear layer's weight by the definition of its format. float32 [rows, cols]"""
    with safe_open(folder / "model.safetensors", "pt") as file:
        return decoded_from(file, base)


def decoded_from(file: Any, base: str) -> torch.Tensor:
    """The same, in an open file."""
    names = ("weight", "weight_scale_inv", "weight_packed", "weight_scale", "weight_scale_2", "weight_shape")
    there = set(file.keys())
    part: dict[str, torch.Tensor] = {name: file.get_tensor(f"{base}.{name}") for name in names if f"{base}.{name}" in there}
    if "weight_scale_inv" in part:
        rows, cols = part["weight"].shape
        scale = part["weight_scale_inv"].float().repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        return part["weight"].float() * scale
    if "weight_shape" in part:
        shifts = torch.arange(0, 32, 4)
        codes = (part["weight_packed"][:, :, None] >> shifts & 15) - 8
        assert part["weight_shape"].tolist() == list(codes.flatten(1).shape)
        return codes.flatten(1) * part["weight_scale"].float().repeat_interleave(128, 1)
    if "weight_scale" not in part:
        return part["weight"].float()
    codes = E2M1[torch.stack((part["weight"] & 15, part["weight"] >> 4), -1).flatten(1).long()]
    if "weight_scale_2" in part:
        return codes * part["weight_scale"].float().repeat_interleave(16, 1) * part["weight_scale_2"]
    return codes * torch.exp2(part["weight_scale"].float() - 127).repeat_interleave(32, 1)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_weights_have_the_wanted_deviation(tmp_path: Path, encoding: str) -> None:
    folder = make(tmp_path / "model", QWEN, encoding, 1, attention="encoded")
    for name, std in (("mlp.experts.5.gate_proj", 128**-0.5), ("mlp.experts.5.down_proj", 0.25 / 0.6 * 128**-0.5)):
        values = decoded(folder, f"model.layers.0.{name}")
        spread = 0.45 if encoding == "f8_e4m3" else 0.05  # one scale for the whole matrix at this size
        assert values.square().mean().sqrt().item() == pytest.approx(std, rel=spread)
        assert abs(values.mean().item()) < 0.15 * std
    assert decoded(folder, "model.layers.0.self_attn.o_proj").square().mean().sqrt().item() == pytest.approx(
        0.1 * 128**-0.5, rel=0.3
    )


def twin_of(folder: Path) -> dict[str, torch.Tensor]:
    reader = gguf.GGUFReader(write_twin(folder, folder.with_suffix(".gguf")))
    values = {}
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        values[tensor.name] = torch.from_numpy(np.array(array).reshape(tuple(reversed([int(size) for size in tensor.shape]))))
    return values


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_twin_holds_the_same_values(tmp_path: Path, encoding: str) -> None:
    folder = make(tmp_path / "model", QWEN, encoding, 1, attention="encoded")
    twin = twin_of(folder)
    sources = {"attn_output": "self_attn.o_proj"} | {
        f"ffn_{part}_exps": f"mlp.experts.77.{part}_proj" for part in ("gate", "up", "down")
    }
    for theirs, ours in sources.items():
        name, wanted = f"blk.0.{theirs}", decoded(folder, f"model.layers.0.{ours}")
        index = 77 if theirs.endswith("_exps") else slice(None)
        found = twin[f"{name}.weight"][index]
        if encoding == "nvfp4":
            found = found * twin[f"{name}.scale"][index]
        if encoding == "f8_e4m3":  # Q8_0, the nearest type
            assert (found - wanted).abs().max() <= wanted.abs().max() / 200
        else:
            torch.testing.assert_close(found, wanted, rtol=2**-8 if encoding in ("f16", "f32") else 1e-6, atol=1e-9)
    router = tensors(folder, "model.layers.0.mlp.gate.weight")[0].float()
    assert torch.equal(twin["blk.0.ffn_gate_inp.weight"], router)


def test_the_gpt_oss_twin_parts_gate_and_up(tmp_path: Path) -> None:
    folder = make(tmp_path / "model", GPT_OSS, "mxfp4", 1)
    twin, base = twin_of(folder), "model.layers.0.mlp.experts.gate_up_proj"
    blocks, scales, bias = tensors(folder, f"{base}_blocks", f"{base}_scales", f"{base}_bias")
    codes = E2M1[torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).long()]  # [E, 2I, H / 32, 32]
    values = (codes * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)
    for part, first in (("gate", 0), ("up", 1)):
        assert torch.equal(twin[f"blk.0.ffn_{part}_exps.weight"], values[:, first::2])
        assert torch.equal(twin[f"blk.0.ffn_{part}_exps.bias"], bias.float()[:, first::2])


def statistics(folder: Path, shape: Shape, routing: Routing, encoding: str = "bf16") -> RoutingStatistics:
    make(folder, shape, encoding, shape.layers, routing=routing)
    with session_on(folder, expert_ram="100%") as (session, _):
        return routing_statistics(record_routing(session, token_ids(shape.vocab, 192, 3, routing)), shape.num_experts)


@pytest.mark.parametrize("routing", ["uniform", "skewed"])
@pytest.mark.parametrize(("name", "encoding"), [("qwen3-30b-a3b", "bf16"), ("gpt-oss-20b", "mxfp4"), ("mixtral-8x7b", "bf16")])
def test_routing_is_as_claimed(tmp_path: Path, name: str, encoding: str, routing: Routing) -> None:
    shape = SHAPES[name].small(layers=2, expert_size=32, vocab=2048)
    check_routing(statistics(tmp_path / "model", shape, routing, encoding), shape, routing)


def test_naive_scales_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SCALES", Scales(embedding=0.02, attention=1.0))
    shape = SHAPES["qwen3-30b-a3b"].small(layers=2, expert_size=32, vocab=2048)
    with pytest.raises(AssertionError, match="route alike"):
        check_routing(statistics(tmp_path / "model", shape, "uniform"), shape, "uniform")


def test_statistics_by_hand() -> None:
    ids = np.array([[[0, 1], [1, 2]] * 32])  # one layer, 64 tokens
    found = routing_statistics(ids, num_experts=4)
    assert (found.overlap, found.distinct, found.hottest_share) == (1.0, 3.0, 0.5)


def plain_copy(folder: Path, copy: Path) -> Path:
    """The same model with every weight decoded to F32."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((copy / "config.json").read_text())
    config.pop("quantization_config", None)
    (copy / "config.json").write_text(json.dumps(config))
    bases = {name.rpartition(".")[0] for name in header(folder)}
    with safe_open(folder / "model.safetensors", "pt") as file:
        save_file({f"{base}.weight": decoded_from(file, base) for base in bases}, copy / "model.safetensors")
    return copy


@pytest.mark.parametrize("encoding", ["bf16", "f8_e4m3", "mxfp4", "nvfp4", "int4"])
def test_llama_cpp_computes_the_same_model(tmp_path: Path, encoding: str) -> None:
    llama = pytest.importorskip("tests.perf.llama", exc_type=ImportError)
    llama.quiet()
    shape = SHAPES["qwen3-30b-a3b"].small(layers=1, hidden=128, vocab=512)
    folder = make(tmp_path / "model", shape, encoding, 1, attention="encoded")
    rival = llama.Llama(str(write_twin(folder, tmp_path / "twin.gguf")), 2, 256)
    tokens = token_ids(shape.vocab, 24, 1, "uniform")
    with session_on(plain_copy(folder, tmp_path / "plain"), expert_ram="100%") as (session, _):
        wanted = session.sync(tokens)[0].numpy()
    found = rival.read(tokens).copy()
    rival.close()
    assert np.linalg.norm(wanted - found) < 0.02 * np.linalg.norm(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["bf16", "mxfp4"])
def test_llama_cpp_computes_the_same_gpt_oss(tmp_path: Path, encoding: str) -> None:
    llama = pytest.importorskip("tests.perf.llama", exc_type=ImportError)
    transformers = pytest.importorskip("transformers")
    llama.quiet()
    shape = SHAPES["gpt-oss-20b"].small(layers=2)
    folder = make(tmp_path / "model", shape, encoding, 2)
    options = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if encoding == "mxfp4" else {}
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    rival = llama.Llama(str(write_twin(folder, tmp_path / "twin.gguf")), 2, 512)
    tokens = token_ids(shape.vocab, 200, 1, "uniform")  # longer than the sliding window
    with torch.inference_mode():
        wanted = reference(torch.tensor([tokens])).logits[0, -1].numpy()
    found = rival.read(tokens).copy()
    rival.close()
    assert np.linalg.norm(wanted - found) < 0.02 * np.linalg.norm(wanted)
