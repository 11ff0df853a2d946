"""Qwen2 MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): attention with biases; experts beside a shared one that has a gate.

Source: Qwen2 technical report 2024 and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch

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
    gated_expert_shapes,
    mlp_shapes,
    pre_norm_decoder,
)
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, gated_expert
from engine.models.routing import RoutedExperts


@dataclass(frozen=True)
class Config(DecoderConfig):
    dense_size: int
    shared_size: int
    renormalise: bool
    has_bias: bool  # of queries, keys and values

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("use_sliding_window", False)
        return cls(
            **read_common(hf, moe_layers=hf.sparse_layers()),
            dense_size=hf.integer("intermediate_size"),
            shared_size=hf.integer("shared_expert_intermediate_size"),
            renormalise=hf.flag("norm_topk_prob", False),
            has_bias=hf.flag("qkv_bias", True),
        )


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkv" if config.has_bias else "")
        if layer in config.moe_layers:
            shapes[f"{block}.mlp.gate"] = (config.num_experts, config.hidden_size)
            shapes |= gated_expert_shapes(f"{block}.mlp", config.hidden_size, config.shared_size)
        else:
            shapes |= mlp_shapes(f"{block}.mlp", config.hidden_size, config.dense_size)
    return shapes


class FeedForward:
    """Router, experts and the shared one."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._routed = RoutedExperts(layer, weights, kernels, config.top_k, renormalise=config.renormalise)
        self._shared = gated_expert(weights.at("mlp"), kernels)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return self._routed(x, experts) + self._shared(x)


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    def part(layer: int, own: Weights) -> LayerPart:
        return FeedForward(layer, config, own, kernels) if layer in config.moe_layers else dense(own.at("mlp"), kernels)

    return pre_norm_decoder(config, weights, kernels, fused(config, kernels), part)
