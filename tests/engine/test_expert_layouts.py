"""Every published way to lay out experts, under each family's names: what is bound is what was written.

Names and shapes: transformers' checkpoints and the hub's, by family. The families need not be ones that the engine runs yet.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint.experts import ExpertNames, ExpertRange, map_experts
from engine.checkpoint.index import open_checkpoint
from engine.experts.bind import ExpertBinder, recognise_experts
from engine.kernels.reference import dequantise
from engine.tiers.arena import BLOCK, run_bases, slot_stride
from tests.perf.quantise import QUANTISERS, Tensors, mxfp4

COUNT, WIDE, HIDDEN = 3, 96, 64
Values = dict[str, torch.Tensor]  # gate [E, I, H], up [E, I, H], down [E, H, I]
PARTS = ("gate", "up", "down")


@dataclass(frozen=True)
class Family:
    names: ExpertNames
    write: Callable[[str, ExpertNames, Values], Tensors]  # with the prefix of the layer
    has_gate: bool = True
    is_exact: bool = True  # else the values are quantised


def own(suffixes: Callable[[torch.Tensor], Tensors] | None = None) -> Callable[[str, ExpertNames, Values], Tensors]:
    """Tensors of its own for each expert."""

    def write(prefix: str, names: ExpertNames, values: Values) -> Tensors:
        assert names.separate
        tensors: Tensors = {}
        parts = PARTS[-len(names.separate) :]
        for expert in range(COUNT):
            for matrix, part in zip(names.separate, parts, strict=True):
                encoded = suffixes(values[part][expert]) if suffixes else {".weight": values[part][expert]}
                tensors |= {f"{prefix}.{expert}.{matrix}{suffix}": tensor for suffix, tensor in encoded.items()}
        return tensors

    return write


def fused(prefix: str, names: ExpertNames, values: Values) -> Tensors:
    """[E, 2 I, H], gate first."""
    assert names.fused
    both, down = names.fused
    suffix = ".weight" if "linear" in both else ""
    return {
        f"{prefix}.{both}{suffix}": torch.cat((values["gate"], values["up"]), 1),
        f"{prefix}.{down}{suffix}": values["down"],
    }


def blocks(prefix: str, names: ExpertNames, values: Values) -> Tensors:
    """gpt-oss: rows of gate and up alternate, codes and scales apart."""
    assert names.fused
    tensors: Tensors = {}
    both = torch.stack((values["gate"], values["up"]), 2).flatten(1, 2)  # [E, 2 I, H]
    for matrix, stacked in zip(names.fused, (both, values["down"]), strict=True):
        encoded = [mxfp4(weight) for weight in stacked]
        tensors[f"{prefix}.{matrix}_blocks"] = torch.stack([part[".weight"].view(stacked.shape[1], -1, 16) for part in encoded])
        tensors[f"{prefix}.{matrix}_scales"] = torch.stack([part[".weight_scale"] for part in encoded])
        tensors[f"{prefix}.{matrix}_bias"] = torch.randn(COUNT, stacked.shape[1]).bfloat16()
    return tensors


def by_columns(interleaved: bool) -> Callable[[str, ExpertNames, Values], Tensors]:
    """[E, H, 2 I] and [E, I, H]."""

    def write(prefix: str, names: ExpertNames, values: Values) -> Tensors:
        assert names.fused
        gate, up = values["gate"], values["up"]
        both = torch.stack((gate, up), 2).flatten(1, 2) if interleaved else torch.cat((gate, up), 1)
        return {
            f"{prefix}.{names.fused[0]}": both.transpose(1, 2),
            f"{prefix}.{names.fused[1]}": values["down"].transpose(1, 2),
        }

    return write


def deepseek_fp4(weight: torch.Tensor) -> Tensors:
    parts = mxfp4(weight)
    return {".weight": parts[".weight"].view(torch.int8), ".scale": parts[".weight_scale"].view(torch.float8_e8m0fnu)}


def packed_mxfp4(weight: torch.Tensor) -> Tensors:
    parts = mxfp4(weight)
    return {".weight_packed": parts[".weight"], ".weight_scale": parts[".weight_scale"]}


QWEN = ExpertNames("model.layers.{layer}.mlp.experts", separate=("gate_proj", "up_proj", "down_proj"))
NEMOTRON = ExpertNames("backbone.layers.{layer}.mixer.experts", separate=("up_proj", "down_proj"))
GATE_UP = ("gate_up_proj", "down_proj")
QWEN_3_5 = ExpertNames(
    "model.language_model.layers.{layer}.mlp.experts", separate=("gate_proj", "up_proj", "down_proj"), fused=GATE_UP
)
FAMILIES: dict[str, Family] = {
    "mixtral, minimax_m2, phimoe": Family(
        ExpertNames("model.layers.{layer}.block_sparse_moe.experts", separate=("w1", "w3", "w2")), own()
    ),
    "qwen3_moe, deepseek_v3, glm4_moe and others": Family(QWEN, own()),
    "qwen3_5_moe BF16": Family(QWEN_3_5, fused),
    "qwen3_5_moe FP8": Family(QWEN_3_5, own(QUANTISERS["FP8"]), is_exact=False),
    "qwen3_5_moe NVFP4": Family(QWEN_3_5, own(QUANTISERS["NVFP4"]), is_exact=False),
    "gpt_oss MXFP4": Family(
        ExpertNames("model.layers.{layer}.mlp.experts", fused=GATE_UP, is_interleaved=True), blocks, is_exact=False
    ),
    "gpt_oss BF16": Family(
        ExpertNames("model.layers.{layer}.mlp.experts", fused=GATE_UP, is_transposed=True, is_interleaved=True),
        by_columns(True),
    ),
    "llama4": Family(
        ExpertNames("language_model.model.layers.{layer}.feed_forward.experts", fused=GATE_UP, is_transposed=True),
        by_columns(False),
    ),
    "gemma4": Family(ExpertNames("model.language_model.layers.{layer}.experts", fused=GATE_UP), fused),
    "granitemoe": Family(ExpertNames("model.layers.{layer}.block_sparse_moe", fused=("input_linear", "output_linear")), fused),
    "nemotron_h": Family(NEMOTRON, own(), has_gate=False),
    "nemotron_h NVFP4": Family(NEMOTRON, own(QUANTISERS["NVFP4"]), has_gate=False, is_exact=False),
    "lfm2_moe": Family(ExpertNames("model.layers.{layer}.feed_forward.experts", separate=("w1", "w3", "w2")), own()),
    "jamba": Family(
        ExpertNames("model.layers.{layer}.feed_forward.experts", separate=("gate_proj", "up_proj", "down_proj")), own()
    ),
    "deepseek_v4 FP4": Family(
        ExpertNames("layers.{layer}.ffn.experts", separate=("w1", "w3", "w2")), own(deepseek_fp4), is_exact=False
    ),
    "compressed-tensors MXFP4": Family(QWEN, own(packed_mxfp4), is_exact=False),
    "compressed-tensors int4": Family(QWEN, own(QUANTISERS["INT4"]), is_exact=False),
    "GPTQ": Family(QWEN, own(QUANTISERS["GPTQ"]), is_exact=False),
    "AWQ": Family(QWEN, own(QUANTISERS["AWQ"]), is_exact=False),
}


def read(where: ExpertRange, memory: torch.Tensor) -> None:
    """As the disk tier leaves an expert in its slot."""
    for run, base in zip(where.runs, run_bases(where), strict=True):
        start = base + run.offset % BLOCK
        data = run.file.read_bytes()[run.offset : run.offset + run.nbytes]
        memory[start : start + run.nbytes] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_bound_is_what_was_written(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    family = FAMILIES[name]
    tensors: Tensors = {}
    written: list[Values] = []
    for layer in (0, 1):
        values = {
            "gate": torch.randn(COUNT, WIDE, HIDDEN),
            "up": torch.randn(COUNT, WIDE, HIDDEN),
            "down": torch.randn(COUNT, HIDDEN, WIDE),
        }
        written.append(values)
        tensors |= family.write(family.names.prefix.format(layer=layer), family.names, values)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    experts = map_experts(open_checkpoint(tmp_path), family.names)
    form = recognise_experts(experts, family.names, {})
    shapes = ((WIDE, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE))
    assert form.shapes == (shapes if family.has_gate else shapes[1:])
    small = {ref.name: torch.frombuffer(bytearray(ref.file.read_bytes()[ref.offset : ref.offset + ref.nbytes]), dtype=torch.uint8)
             for ref in experts.small_refs()}  # fmt: skip
    binder = ExpertBinder(experts, form, small)
    binder.check_resident()
    memory = torch.zeros(slot_stride(experts), dtype=torch.uint8)
    for layer, values in enumerate(written):
        for expert in range(COUNT):
            read(experts.ranges[layer][expert], memory)
            bound = binder.bind(layer, expert, memory)
            assert (bound[0] is not None) == family.has_gate
            for weight, part in zip(bound, PARTS, strict=True):
                if weight is None:
                    continue
                wanted = values[part][expert]
                error = float((dequantise(weight) - wanted).norm() / wanted.norm())
                assert error == 0 if family.is_exact else error < 0.15, (part, layer, expert)
