"""MiniMax-M2 (M2 to M2.7): attention with queries and keys normed over all heads and turned in part, routing by sigmoid.

Source: the published configuration and weights.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.models.attention import WideNormAttention
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_of, pre_norm_decoder, wide_norm_shapes
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.routing import sigmoid_router


@dataclass(frozen=True)
class Config(DecoderConfig):
    rotary_dim: int

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("scoring_func", "sigmoid")
        hf.expect("use_routing_bias", True)
        hf.expect("qk_norm_type", "per_layer")
        hf.expect("shared_intermediate_size", 0)
        common = read_common(hf, experts=("num_local_experts",), expert_size="intermediate_size", theta=5e6, head_dim=128)
        turned = hf.rotary_dim(common["head_dim"])
        if "rotary_dim" in values:  # as published
            turned = hf.integer("rotary_dim", maximum=common["head_dim"])
        return cls(**common, rotary_dim=turned)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config) | wide_norm_shapes(block, config)
        shapes[f"{block}.block_sparse_moe.gate"] = (config.num_experts, config.hidden_size)
        shapes[f"{block}.block_sparse_moe.e_score_correction_bias"] = (config.num_experts,)
    return shapes


class FeedForward:
    """Router and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        own = weights.at("block_sparse_moe")
        bias = own.vector("e_score_correction_bias")
        self._route = sigmoid_router(kernels, own.matrix("gate"), bias, config.top_k, epsilon=0.0)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    return pre_norm_decoder(
        config, weights, kernels,
        attention=lambda _, own: WideNormAttention(config, own, kernels),
        feed_forward=lambda layer, own: FeedForward(layer, config, own, kernels),
        rotary_dim=config.rotary_dim,
    )  # fmt: skip
