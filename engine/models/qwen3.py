"""Qwen3, the dense ones (0.6B to 32B): Llama's layers with norms of each head. Source: Qwen3 technical report 2025."""

from dataclasses import dataclass
from typing import Any

from engine.models import llama
from engine.models.config import read_common
from engine.models.hf_config import HfConfig

weight_shapes, build = llama.weight_shapes, llama.build


@dataclass(frozen=True)
class Config(llama.Config):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values | {"num_experts": 1, "num_experts_per_tok": 1}, name)
        hf.expect("use_sliding_window", False)
        common = read_common(hf, expert_size="intermediate_size", head_dim=128)
        return cls(**common, has_bias=hf.flag("attention_bias", False), has_head_norms=True, window=None)
