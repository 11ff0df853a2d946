"""Granite MoE (3.0 and 3.1, 1B-A400M and 3B-A800M): Mixtral's shape with four constants, experts stacked in one tensor.

Source: the published configuration. Each part of a layer is added times `residual_multiplier`, which the kernels' fused
attention does not know. So the stream is kept divided by it: a norm undoes a constant factor but for its epsilon, which is
divided by the factor's square.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, PreNormBlock, Shapes, attention_shapes, frame_of, rms
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.rope import Rope


@dataclass(frozen=True)
class Config(DecoderConfig):
    embedding_multiplier: float
    attention_multiplier: float
    residual_multiplier: float
    logits_scaling: float
    has_bias: bool  # of attention's projections

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        return cls(
            **read_common(hf, experts=("num_local_experts",), expert_size="intermediate_size"),
            embedding_multiplier=hf.positive("embedding_multiplier", 1.0),
            attention_multiplier=hf.positive("attention_multiplier", 1.0),
            residual_multiplier=hf.positive("residual_multiplier", 1.0),
            logits_scaling=hf.positive("logits_scaling", 1.0),
            has_bias=hf.flag("attention_bias", False),
        )


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkvo" if config.has_bias else "")
        shapes[f"{block}.block_sparse_moe.router.layer"] = (config.num_experts, config.hidden_size)
    return shapes


class FeedForward:
    """Router, whose softmax is over the chosen experts alone, and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("block_sparse_moe.router.layer"), config.top_k, renormalise=True)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    factor = config.residual_multiplier
    scaled = replace(config, rms_eps=config.rms_eps / factor**2)
    attention = fused(scaled, kernels, scale=config.attention_multiplier)
    blocks = []
    for layer in range(config.num_layers):
        own = weights.at(f"model.layers.{layer}")
        blocks.append(PreNormBlock(layer, attention(layer, own), FeedForward(layer, config, own, kernels)))
    norm = rms(weights.vector("model.norm.weight"), scaled.rms_eps)
    return Decoder(
        weights, blocks, Rope(config.head_dim, config.rope_theta, config.stretch), norm, kernels,
        embedding_scale=config.embedding_multiplier / factor,
        finish=lambda logits: logits / config.logits_scaling,
    )  # fmt: skip
