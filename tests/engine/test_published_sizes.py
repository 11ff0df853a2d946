"""Footprints of whole published models, held against the parameter counts that their makers give.

The headers are made of transformers' own model classes, without memory for a weight, by the names under which it saves them.
Sizes are transformers' defaults where those are the model's, and else from its published config.json.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.judge import footprint_of
from tests.helpers.full_size import published_tensors

_LFM2 = ["full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)]


@dataclass(frozen=True)
class _Model:
    """`billions` of parameters as `source` gives them, rounded as there."""

    name: str
    model_type: str
    billions: float
    source: str
    config: dict[str, Any] = field(default_factory=dict)


def _granite(**sizes: int) -> dict[str, Any]:
    """Four layers of attention among forty."""
    kinds = ["full_attention" if layer in (5, 15, 25, 35) else "linear_attention" for layer in range(40)]
    return sizes | {
        "num_hidden_layers": 40, "vocab_size": 100352, "mamba_d_state": 128, "mamba_d_head": 64, "layer_types": kinds,
        "tie_word_embeddings": True,
    }  # fmt: skip


_MODELS = (
    _Model("Mixtral-8x7B", "mixtral", 46.7, "Mistral's announcement: 46.7B total parameters"),
    _Model("Qwen1.5-MoE-A2.7B", "qwen2_moe", 14.3, "its card: 14.3B parameters in total"),
    _Model("Qwen3-30B-A3B", "qwen3_moe", 30.5, "its card: 30.5B in total", {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "moe_intermediate_size": 768,
    }),
    _Model("Qwen3-235B-A22B", "qwen3_moe", 235, "its card: 235B in total", {
        "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "moe_intermediate_size": 1536,
    }),
    _Model("Qwen3-Next-80B-A3B", "qwen3_next", 80, "its card: 80B in total"),
    _Model("Qwen3.6-35B-A3B", "qwen3_5_moe_text", 35, "its card: 35B in total, with the part that sees"),
    _Model("OLMoE-1B-7B", "olmoe", 6.9, "arXiv 2409.02060: 6.9B total parameters", {"intermediate_size": 1024}),
    _Model("Phi-3.5-MoE", "phimoe", 42, "arXiv 2404.14219: 42B parameters"),
    _Model("DeepSeek-V3", "deepseek_v3", 671, "its card: 671B, without 14B that guess further tokens"),
    _Model("DeepSeek-V2-Lite", "deepseek_v2", 15.7, "arXiv 2405.04434: 15.7B total parameters", {
        "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
        "moe_intermediate_size": 1408, "intermediate_size": 10944, "first_k_dense_replace": 1, "num_experts_per_tok": 6,
    }),
    _Model("GLM-5", "glm_moe_dsa", 744, "its card: 744B total"),
    _Model("DeepSeek-V3.2", "deepseek_v32", 671, "its report: DeepSeek-V3.1-Terminus, 671B, with an index"),
    _Model("DeepSeek-V4-Flash", "deepseek_v4", 284, "its card: 284B in total", {
        "compress_ratios": [0, 0, *(4, 128) * 20, 4, 0], "num_hash_layers": 3,
    }),
    _Model("GLM-4.5-Air", "glm4_moe", 106, "its card: 106 billion total parameters", {"head_dim": 128}),
    _Model("GLM-4.7-Flash", "glm4_moe_lite", 30, "its card: a 30B-A3B model"),
    _Model("gpt-oss-20b", "gpt_oss", 20.9, "its card: 20.9B total", {"num_hidden_layers": 24, "num_local_experts": 32}),
    _Model("gpt-oss-120b", "gpt_oss", 116.8, "its card: 116.8B total"),
    _Model("MiniMax-M2", "minimax_m2", 230, "its card: 230 billion total parameters"),
    _Model("LFM2-8B-A1B", "lfm2_moe", 8.3, "its card: 8.3B total parameters", {
        "num_hidden_layers": 24, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
        "num_experts": 32, "num_dense_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
        "layer_types": _LFM2,
    }),
    _Model("granite-3.0-3b-a800m", "granitemoe", 3.3, "its card: 3.3B parameters", {
        "vocab_size": 49155, "hidden_size": 1536, "intermediate_size": 512, "num_hidden_layers": 32, "num_attention_heads": 24,
        "num_key_value_heads": 8, "num_local_experts": 40, "num_experts_per_tok": 8, "tie_word_embeddings": True,
    }),
    _Model("Granite-4.0-H-Tiny", "granitemoehybrid", 7, "its card: 7B total", _granite(
        hidden_size=1536, intermediate_size=512, num_attention_heads=12, num_key_value_heads=4, num_local_experts=64,
        num_experts_per_tok=6, shared_intermediate_size=1024, mamba_n_heads=48,
    )),
    _Model("Granite-4.0-H-Small", "granitemoehybrid", 32, "its card: 32B total", _granite(
        hidden_size=4096, intermediate_size=768, num_attention_heads=32, num_key_value_heads=8, num_local_experts=72,
        num_experts_per_tok=10, shared_intermediate_size=1536, mamba_n_heads=128,
    )),
)  # fmt: skip


def _header(model: _Model) -> Checkpoint:
    """In BF16, every tensor in one file."""
    specs, config = published_tensors(model.model_type, model.config)
    tensors, offset = {}, 0
    for spec in specs:
        tensors[spec.name] = TensorRef(
            spec.name, Path("model.safetensors"), dtype=spec.dtype, shape=spec.shape, offset=offset, nbytes=spec.num_bytes
        )
        offset += spec.num_bytes
    return Checkpoint(Path(model.name), config, tensors)


@pytest.mark.parametrize("model", _MODELS, ids=lambda model: model.name)
def test_a_whole_model_weighs_what_its_makers_say(model: _Model) -> None:
    checkpoint = _header(model)
    found = footprint_of(checkpoint)
    assert found.model_bytes == checkpoint.nbytes
    assert abs(found.model_bytes / (2e9 * model.billions) - 1) < 0.01, model.source
    assert found.dense_bytes + found.experts_total * found.expert_bytes == found.model_bytes
    assert 0.8 < found.experts_total * found.expert_bytes / found.model_bytes < 1, "most of it is routed experts"
