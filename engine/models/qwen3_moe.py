"""Qwen3 MoE (30B-A3B, 235B-A22B, Coder): grouped-query attention with per-head norms, SwiGLU experts, some layers dense.

Source: Qwen3 technical report 2025 and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import (
    Decoder,
    LayerPart,
    Shapes,
    attention_shapes,
    dense,
    frame_of,
    mlp_shapes,
    pre_norm_decoder,
)  # fmt: skip
from engine.models.hf_config import HfConfig
from engine.models.layers import Weights
from engine.models.routing import RoutedExperts


@dataclass(frozen=True)
class Config(DecoderConfig):
    dense_size: int
    renormalise: bool
    window: int | None

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("attention_bias", False)
        return cls(
            **read_common(hf, moe_layers=hf.sparse_layers()),
            dense_size=hf.integer("intermediate_size"),
            renormalise=hf.flag("norm_topk_prob", False),
            window=hf.optional_integer("sliding_window") if hf.flag("use_sliding_window", False) else None,
        )

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return (self.window,) * self.num_layers


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config)
        shapes[f"{block}.self_attn.q_norm.weight"] = shapes[f"{block}.self_attn.k_norm.weight"] = (config.head_dim,)
        if layer in config.moe_layers:
            shapes[f"{block}.mlp.gate"] = (config.num_experts, config.hidden_size)
        else:
            shapes |= mlp_shapes(f"{block}.mlp", config.hidden_size, config.dense_size)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    def part(layer: int, own: Weights) -> LayerPart:
        if layer in config.moe_layers:
            return RoutedExperts(layer, own, kernels, config.top_k, renormalise=config.renormalise)
        return dense(own.at("mlp"), kernels)

    return pre_norm_decoder(config, weights, kernels, fused(config, kernels, (config.window,) * config.num_layers), part)
