"""Granite MoE (3.0 and 3.1, 1B-A400M and 3B-A800M): Mixtral's shape with four constants, experts stacked in one tensor; and
`granitemoeshared`, which adds an expert that every token goes through.

Source: the published configuration. Each part of a layer is added times `residual_multiplier`, which the kernels' fused
attention does not know. So the stream is kept divided by it: a norm undoes a constant factor but for its epsilon, which is
divided by the factor's square.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.spec import FeedForward
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Block, Decoder, PreNormBlock, Shapes, attention_shapes, frame_of, rms
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
    shared_size: int  # of the expert that every token goes through; 0 for none

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        return cls(**read_granite(HfConfig(values, name)))

    @property
    def scaled_eps(self) -> float:
        """Of the norms of the stream as it is kept."""
        return self.rms_eps / self.residual_multiplier**2


def read_granite(hf: HfConfig) -> dict[str, Any]:
    """The fields of `Config`."""
    return read_common(hf, experts=("num_local_experts",), expert_size="intermediate_size") | read_own(hf)


def read_own(hf: HfConfig, shared_size: int = 0) -> dict[str, Any]:
    """Those of them that other decoders do not have; `shared_size` holds where the file is silent."""
    return {
        "embedding_multiplier": hf.positive("embedding_multiplier", 1.0),
        "attention_multiplier": hf.positive("attention_multiplier", 1.0),
        "residual_multiplier": hf.positive("residual_multiplier", 1.0),
        "logits_scaling": hf.positive("logits_scaling", 1.0),
        "has_bias": hf.flag("attention_bias", False),
        "shared_size": hf.integer("shared_intermediate_size", shared_size, minimum=0),
    }


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkvo" if config.has_bias else "") | mixture_shapes(block, config)
    return shapes


def mixture_shapes(block: str, config: Config) -> Shapes:
    """Of `Mixture` in the block of that name."""
    hidden, inner = config.hidden_size, config.shared_size
    shapes: Shapes = {f"{block}.block_sparse_moe.router.layer": (config.num_experts, hidden)}
    if inner:
        shapes[f"{block}.shared_mlp.input_linear"] = (2 * inner, hidden)
        shapes[f"{block}.shared_mlp.output_linear"] = (hidden, inner)
    return shapes


class Mixture:
    """Router, whose softmax is over the chosen experts alone, and experts; `weights` are the layer's."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("block_sparse_moe.router.layer"), config.top_k, renormalise=True)
        self._shared = _joined_swiglu(weights.at("shared_mlp"), kernels) if config.shared_size else None

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        y = experts(self._layer, x, *self._route(x))
        return y if self._shared is None else y + self._shared(x)


def _joined_swiglu(weights: Weights, kernels: Kernels) -> FeedForward:
    """A dense feed-forward part with gate and up in one matrix, of any format: its halves need not be apart in that."""
    both, down = weights.matrix("input_linear"), weights.matrix("output_linear")

    def run(x: torch.Tensor) -> torch.Tensor:
        gate, up = kernels.linear(x, both).chunk(2, dim=-1)  # [T, I]
        return kernels.linear(F.silu(gate) * up, down)

    return run


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    attention = fused(replace(config, rms_eps=config.scaled_eps), kernels, scale=config.attention_multiplier)
    blocks = []
    for layer in range(config.num_layers):
        own = weights.at(f"model.layers.{layer}")
        blocks.append(PreNormBlock(layer, attention(layer, own), Mixture(layer, config, own, kernels)))
    rope = Rope(config.head_dim, config.rope_theta, config.stretch)
    return granite_decoder(config, weights, kernels, blocks, rope)


def granite_decoder(config: Config, weights: Weights, kernels: Kernels, blocks: Sequence[Block], rope: Rope) -> Decoder:
    """Over a stream divided by `residual_multiplier`."""
    return Decoder(
        weights, blocks, rope, rms(weights.vector("model.norm.weight"), config.scaled_eps), kernels,
        embedding_scale=config.embedding_multiplier / config.residual_multiplier,
        finish=lambda logits: logits / config.logits_scaling,
    )  # fmt: skip
