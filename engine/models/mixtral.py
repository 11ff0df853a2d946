"""Mixtral: grouped-query attention, every layer a mixture of SwiGLU experts. Source: Jiang et al. 2024, Mixtral of Experts."""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_of, pre_norm_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights


@dataclass(frozen=True)
class Config(DecoderConfig):
    window: int | None

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        common = read_common(hf, experts=("num_local_experts",), expert_size="intermediate_size", theta=1e6, eps=1e-5)
        return cls(**common, window=hf.optional_integer("sliding_window"))

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return (self.window,) * self.num_layers


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config)
        shapes[f"{block}.block_sparse_moe.gate"] = (config.num_experts, config.hidden_size)
    return shapes


class FeedForward:
    """Router and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("block_sparse_moe.gate"), config.top_k, renormalise=True)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    attention = fused(config, kernels, (config.window,) * config.num_layers)
    return pre_norm_decoder(config, weights, kernels, attention, lambda layer, own: FeedForward(layer, config, own, kernels))
