"""Mixtral: grouped-query attention, every layer a mixture of SwiGLU experts. Source: Jiang et al. 2024, Mixtral of Experts."""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.weights import ExpertMath
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_shapes, gqa_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, YarnScaling


@dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    expert_size: int
    rms_eps: float
    rope_theta: float
    yarn: YarnScaling | None
    window: int | None
    tied: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("hidden_act", "silu")
        hidden, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
        kv_heads = hf.integer("num_key_value_heads", heads)
        hf.divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        theta, yarn = hf.rope(1e6)
        return cls(
            vocab_size=hf.integer("vocab_size"),
            hidden_size=hidden,
            num_layers=hf.num_layers(),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=hf.integer("head_dim", hidden // heads),
            num_experts=hf.integer("num_local_experts"),
            top_k=hf.integer("num_experts_per_tok"),
            expert_size=hf.integer("intermediate_size"),
            rms_eps=hf.positive("rms_norm_eps", 1e-5),
            rope_theta=theta,
            yarn=yarn,
            window=hf.optional_integer("sliding_window"),
            tied=hf.flag("tie_word_embeddings", False),
        )

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_layers))

    @property
    def math(self) -> ExpertMath:
        return ExpertMath()


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_shapes(config.vocab_size, config.hidden_size, tied=config.tied)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim)
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
    windows = (config.window,) * config.num_layers
    return gqa_decoder(config, weights, kernels, windows, lambda layer, own: FeedForward(layer, config, own, kernels))
