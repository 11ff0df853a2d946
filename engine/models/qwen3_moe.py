"""Qwen3 MoE (30B-A3B, 235B-A22B, Coder): grouped-query attention with per-head norms, SwiGLU experts, some layers dense.

Source: Qwen3 technical report 2025 and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.weights import ExpertMath
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_shapes, gqa_decoder, swiglu_shapes
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, YarnScaling

_PARTS = ("gate_proj", "up_proj", "down_proj")


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
    dense_size: int
    moe_layers: tuple[int, ...]
    renormalise: bool
    rms_eps: float
    rope_theta: float
    yarn: YarnScaling | None
    window: int | None
    tied: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("hidden_act", "silu")
        hf.expect("attention_bias", False)
        hidden, heads = hf.integer("hidden_size"), hf.integer("num_attention_heads")
        kv_heads = hf.integer("num_key_value_heads", heads)
        hf.divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        num_layers, step = hf.num_layers(), hf.integer("decoder_sparse_step", 1)
        dense_layers = hf.integers("mlp_only_layers")
        theta, yarn = hf.rope(10_000.0)
        return cls(
            vocab_size=hf.integer("vocab_size"),
            hidden_size=hidden,
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=hf.integer("head_dim", hidden // heads),
            num_experts=hf.integer(
                "num_experts" if "num_experts" in values else "num_local_experts"
            ),  # as published; as transformers 5 saves
            top_k=hf.integer("num_experts_per_tok"),
            expert_size=hf.integer("moe_intermediate_size"),
            dense_size=hf.integer("intermediate_size"),
            moe_layers=tuple(layer for layer in range(num_layers) if layer not in dense_layers and (layer + 1) % step == 0),
            renormalise=hf.flag("norm_topk_prob", False),
            rms_eps=hf.positive("rms_norm_eps", 1e-6),
            rope_theta=theta,
            yarn=yarn,
            window=hf.optional_integer("sliding_window") if hf.flag("use_sliding_window", False) else None,
            tied=hf.flag("tie_word_embeddings", False),
        )

    @property
    def math(self) -> ExpertMath:
        return ExpertMath()


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_shapes(config.vocab_size, config.hidden_size, tied=config.tied)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim)
        shapes[f"{block}.self_attn.q_norm.weight"] = shapes[f"{block}.self_attn.k_norm.weight"] = (config.head_dim,)
        if layer in config.moe_layers:
            shapes[f"{block}.mlp.gate"] = (config.num_experts, config.hidden_size)
        else:
            for part, shape in zip(_PARTS, swiglu_shapes(config.hidden_size, config.dense_size), strict=True):
                shapes[f"{block}.mlp.{part}"] = shape
    return shapes


class FeedForward:
    """Router and experts, or in some layers one dense SwiGLU."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer, self._kernels, self._mlp = layer, kernels, weights.at("mlp")
        self._route = None
        if layer in config.moe_layers:
            self._route = kernels.router(self._mlp.matrix("gate"), config.top_k, renormalise=config.renormalise)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        if self._route is None:
            return self._kernels.swiglu(x, *(self._mlp.matrix(part) for part in _PARTS))
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    windows = (config.window,) * config.num_layers
    return gqa_decoder(config, weights, kernels, windows, lambda layer, own: FeedForward(layer, config, own, kernels))
