"""Llama (2 to 3.3) and what was built like it: grouped-query attention before a dense SwiGLU.

Source: Grattafiori et al. 2024, The Llama 3 Herd of Models. A layer's dense part is its one expert, which every token asks for:
so it lies where experts lie, and a model larger than memory runs too.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, LayerPart, Shapes, attention_shapes, frame_of, pre_norm_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights


@dataclass(frozen=True)
class Config(DecoderConfig):
    has_bias: bool  # of attention's projections
    has_head_norms: bool
    window: int | None

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values | {"num_experts": 1, "num_experts_per_tok": 1}, name)
        hf.expect("mlp_bias", False)
        common = read_common(hf, expert_size="intermediate_size", stretches=("yarn", "llama3"))
        return cls(**common, has_bias=hf.flag("attention_bias", False), has_head_norms=False, window=None)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkvo" if config.has_bias else "")
        if config.has_head_norms:
            shapes |= {f"{block}.self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
    return shapes


def only_expert(layer: int) -> LayerPart:
    """Every token goes through it, with weight 1."""

    def run(x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(layer, x, x.new_zeros(len(x), 1, dtype=torch.int32), x.new_ones(len(x), 1))

    return run


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    attention = fused(config, kernels, (config.window,) * config.num_layers)
    return pre_norm_decoder(config, weights, kernels, attention, lambda layer, _: only_expert(layer))
