"""Which family is published in which encodings, and a tiny checkpoint rewritten in one of them beside what it then means."""

from collections.abc import Iterator

import torch

from tests.helpers.encodings import Encoding, Tensors, mxfp4_blocks

# By row of the parity table. FP8 blocks: the makers' own releases (DeepSeek, Qwen, MiniMax); channels: zai's GLM, IBM's Granite;
# MXFP4: AMD's and OpenAI's; FP4 experts: DeepSeek's; NVFP4: NVIDIA's; INT4 by 32: Kimi K2 Thinking; GPTQ: Qwen's; the others: vLLM's.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "mixtral": ("FP8 tensor", "GPTQ", "AWQ", "INT4 by 128"),
    "qwen2_moe": ("GPTQ",),
    "qwen3_moe, raw weights": (
        "FP8 blocks", "MXFP4, Quark", "MXFP4, packed", "NVFP4, ModelOpt", "NVFP4, packed", "GPTQ", "AWQ", "INT4 by 128",
        "INT4, zero points",
    ),
    "qwen3_next": ("FP8 blocks", "NVFP4, ModelOpt", "AWQ"),
    "qwen3_5_moe": ("FP8 blocks", "NVFP4, ModelOpt", "NVFP4, FP8 attention", "NVFP4, packed", "GPTQ", "INT4 by 128"),
    "gpt_oss, BF16 layout": ("MXFP4 blocks",),
    "glm4_moe": ("FP8 channels", "NVFP4, packed", "AWQ", "INT4 by 128"),
    "glm4_moe_lite": ("FP8 blocks", "NVFP4, ModelOpt", "AWQ"),
    "deepseek_v2, as Lite": ("FP8 tensor", "GPTQ"),
    "deepseek_v3, YaRN": ("FP8 blocks", "FP4 experts, FP8 dense", "MXFP4, Quark", "NVFP4, ModelOpt", "AWQ"),
    "granitemoe": ("FP8 channels",),
    "granitemoehybrid": ("FP8 channels",),
    "deepseek_v32": ("FP8 blocks", "NVFP4, ModelOpt"),
    "glm_moe_dsa": ("FP8 blocks", "NVFP4, ModelOpt"),
    "kimi_k2": ("FP8 blocks", "INT4 by 32", "NVFP4, ModelOpt"),
    "deepseek_v4, as published": ("FP4 experts, FP8 dense by powers of 2",),
    "minimax_m2": ("FP8 blocks", "MXFP4, Quark", "NVFP4, ModelOpt", "AWQ"),
    "gemma4": ("NVFP4, ModelOpt", "FP8 channels"),
    "llama, stretched": ("FP8 tensor", "FP8 channels", "AWQ"),
    "qwen3": ("FP8 blocks", "NVFP4, packed", "GPTQ"),
}  # fmt: skip
_PLAIN = (
    "embed_tokens", "lm_head", "mlp.gate.weight", "block_sparse_moe.gate.weight", "router", "shared_expert_gate", "in_proj_a",
    "in_proj_b", "norm", "ffn.gate.", "compressor.", "weights_proj", "hc_", "head.weight",
)  # fmt: skip


def encode(tensors: Tensors, encoding: Encoding, *, is_dense: bool) -> tuple[Tensors, Tensors]:
    """What is published, and plain tensors under the same names that mean it; of a model without experts all is dense."""
    coded, meant = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if any(part in name for part in _PLAIN):
            continue
        if ".experts." in name and tensor.ndim == 3:
            parts, meant[name] = _separated(name, tensor, encoding)
        elif tensor.ndim == 3 and name.startswith("model.layers.") and "_linear" in name:
            parts, meant[name] = _still_stacked(name, tensor, encoding)
        elif tensor.ndim == 2:
            write = encoding.experts if ".experts." in name or is_dense else encoding.dense
            if write is None or tensor.shape[1] % encoding.unit or tensor.shape[0] % 8:
                continue
            suffixes, meant[name] = write(tensor)
            parts = {f"{name.removesuffix('.weight')}{suffix}": part for suffix, part in suffixes.items()}
        else:
            continue
        del coded[name]
        coded |= parts
    return coded, meant


def _separated(name: str, stacked: torch.Tensor, encoding: Encoding) -> tuple[Tensors, torch.Tensor]:
    """Experts in one tensor, gate before up, are published one by one where they are quantised."""
    prefix, _, matrix = name.rpartition(".")
    written: Tensors = {}
    meant = []
    for number, expert in enumerate(stacked):
        halves = (
            dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True)) if matrix == "gate_up_proj" else {matrix: expert}
        )
        rows = []
        for part, values in halves.items():
            suffixes, one = encoding.experts(values)
            written |= {f"{prefix}.{number}.{part}{suffix}": tensor for suffix, tensor in suffixes.items()}
            rows.append(one)
        meant.append(torch.cat(rows))
    return written, torch.stack(meant)


def _still_stacked(name: str, stacked: torch.Tensor, encoding: Encoding) -> tuple[Tensors, torch.Tensor]:
    """Granite's experts stay in one tensor [E, out, in], with scales [E, out, 1] beside it (vllm-project/vllm#42463)."""
    written, meant = zip(*map(encoding.experts, stacked), strict=True)
    stem = name.removesuffix(".weight")
    return {f"{stem}{suffix}": torch.stack([one[suffix] for one in written]) for suffix in written[0]}, torch.stack(meant)


def encode_blocks(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """gpt-oss: its experts [E, in, out] in `_blocks` and `_scales`, all else plain."""
    coded, meant = dict(tensors), dict(tensors)
    for name in _stacked(tensors):
        suffixes, values = mxfp4_blocks(coded.pop(name).transpose(1, 2))
        coded |= {f"{name}{suffix}": part for suffix, part in suffixes.items()}
        meant[name] = values.transpose(1, 2).contiguous()
    return coded, meant


def _stacked(tensors: Tensors) -> Iterator[str]:
    return (name for name, tensor in tensors.items() if tensor.ndim == 3 and ".experts." in name)
