"""Published geometries of Mixture-of-Experts models, and the config.json each would have. Numbers only: no weights, no files."""

import math
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """One model as published. `cut` gives fewer layers, `small` the same proportions at a test's size."""

    name: str
    model_type: str  # of config.json
    layers: int
    hidden: int
    num_experts: int
    top_k: int
    expert_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    rms_eps: float
    context: int
    window: int | None = None  # gpt-oss: on even layers alone
    shared_size: int = 0  # width of the expert that every token takes

    def cut(self, layers: int) -> "Shape":
        return replace(self, layers=layers)

    def small(self, layers: int = 2, hidden: int = 256, expert_size: int = 128, vocab: int = 1024) -> "Shape":
        """Experts and top-k stay, since routing depends on them; widths shrink."""
        heads = hidden // 64
        kv_heads = max(1, heads * self.kv_heads // self.heads)
        return replace(
            self, layers=layers, hidden=hidden, expert_size=expert_size, vocab=vocab, heads=heads, kv_heads=kv_heads,
            head_dim=64, shared_size=min(self.shared_size, expert_size),
        )  # fmt: skip

    @property
    def expected_overlap(self) -> float:
        """Experts that two tokens share when routing is uniform and independent."""
        return self.top_k**2 / self.num_experts

    @property
    def expected_distinct(self) -> float:
        """Experts that 64 such tokens touch."""
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** 64)

    @property
    def hottest(self) -> int:
        """How many experts are the hottest tenth."""
        return max(1, math.floor(self.num_experts / 10))


# Sources: config.json of Qwen/Qwen3-30B-A3B, openai/gpt-oss-20b and -120b, mistralai/Mixtral-8x7B-Instruct-v0.1, Qwen/Qwen3.6-35B-A3B.
SHAPES = {
    "qwen3-30b-a3b": Shape("Qwen3-30B-A3B", "qwen3_moe", 48, 2048, 128, 8, 768, 32, 4, 128, 151936, 1e6, 1e-6, 40960),
    "gpt-oss-20b": Shape("gpt-oss-20b", "gpt_oss", 24, 2880, 32, 4, 2880, 64, 8, 64, 201088, 150000.0, 1e-5, 131072, 128),
    "gpt-oss-120b": Shape("gpt-oss-120b", "gpt_oss", 36, 2880, 128, 4, 2880, 64, 8, 64, 201088, 150000.0, 1e-5, 131072, 128),
    "mixtral-8x7b": Shape("Mixtral-8x7B", "mixtral", 32, 4096, 8, 2, 14336, 32, 8, 128, 32000, 1e6, 1e-5, 32768),
    "qwen3.6-35b-a3b": Shape(
        "Qwen3.6-35B-A3B", "qwen3_5_moe", 40, 2048, 256, 8, 512, 16, 2, 256, 248320, 1e7, 1e-6, 262144, shared_size=512
    ),
}  # fmt: skip


def config_of(shape: Shape) -> dict[str, Any]:
    """config.json without quantization_config. Raises KeyError for an architecture whose layout is not written yet."""
    common = {
        "hidden_size": shape.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads, "vocab_size": shape.vocab, "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_eps, "max_position_embeddings": shape.context, "num_experts_per_tok": shape.top_k,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.0, "initializer_range": 0.02,
        "bos_token_id": 1, "eos_token_id": 2, "use_cache": True, "model_type": shape.model_type,
    }  # fmt: skip
    if shape.model_type == "qwen3_5_moe":
        return _qwen3_5_moe(shape, common)
    return common | {"qwen3_moe": _qwen3_moe, "gpt_oss": _gpt_oss, "mixtral": _mixtral}[shape.model_type](shape)


def _qwen3_moe(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "head_dim": shape.head_dim, "intermediate_size": 8 * shape.expert_size, "moe_intermediate_size": shape.expert_size,
        "num_experts": shape.num_experts, "norm_topk_prob": True, "rope_scaling": None, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": shape.layers,
    }  # fmt: skip


def is_full_attention(layer: int) -> bool:
    """Of Qwen3.5: every fourth layer; the others mix by a gated delta rule."""
    return layer % 4 == 3


def linear_heads(shape: Shape) -> tuple[int, int, int]:
    """Key heads, value heads and their size in Qwen3.5's other layers: 16, 32 and 128 beside 16 heads of 256."""
    return shape.heads, 2 * shape.heads, shape.head_dim // 2


def _qwen3_5_moe(shape: Shape, common: dict[str, Any]) -> dict[str, Any]:
    key_heads, value_heads, dim = linear_heads(shape)
    text = {key: value for key, value in common.items() if key != "rope_theta"} | {
        "model_type": "qwen3_5_moe_text", "head_dim": shape.head_dim, "attention_bias": False,
        "moe_intermediate_size": shape.expert_size, "shared_expert_intermediate_size": shape.shared_size,
        "num_experts": shape.num_experts, "linear_conv_kernel_dim": 4, "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads, "linear_key_head_dim": dim, "linear_value_head_dim": dim,
        "layer_types": ["full_attention" if is_full_attention(layer) else "linear_attention" for layer in range(shape.layers)],
        "rope_parameters": {
            "rope_type": "default", "rope_theta": shape.rope_theta, "partial_rotary_factor": 0.25,
            "mrope_section": [11, 11, 10], "mrope_interleaved": True,
        },
    }  # fmt: skip
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": shape.model_type, "text_config": text,
        "tie_word_embeddings": False,
    }  # fmt: skip


def _gpt_oss(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "head_dim": shape.head_dim,
        "intermediate_size": shape.expert_size, "num_local_experts": shape.num_experts, "experts_per_token": shape.top_k,
        "sliding_window": shape.window, "swiglu_limit": 7.0, "initial_context_length": 4096,
        "layer_types": [("sliding_attention", "full_attention")[layer % 2] for layer in range(shape.layers)],
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    }  # fmt: skip


def _mixtral(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["MixtralForCausalLM"], "intermediate_size": shape.expert_size, "num_local_experts": shape.num_experts,
        "output_router_logits": False, "router_aux_loss_coef": 0.02, "sliding_window": None,
    }  # fmt: skip
