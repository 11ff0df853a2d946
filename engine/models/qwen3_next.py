"""Qwen3-Next (80B-A3B, Coder-Next): the layers of `gated_delta`, whose inputs come from two matrices ordered by key head."""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.decoder import Decoder, Shapes
from engine.models.gated_delta import GatedConfig, gated_decoder, gated_shapes, read_gated
from engine.models.hf_config import HfConfig
from engine.models.layers import Weights


@dataclass(frozen=True)
class Config(GatedConfig):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        dense_size, renormalise = hf.integer("intermediate_size"), hf.flag("norm_topk_prob", True)
        return cls(**read_gated(hf), dense_size=dense_size, renormalise=renormalise)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""

    def inputs(part: str) -> Shapes:
        width = config.conv_channels + config.value_heads * config.value_dim
        return {
            f"{part}.in_proj_qkvz": (width, config.hidden_size),
            f"{part}.in_proj_ba": (2 * config.value_heads, config.hidden_size),
        }

    return gated_shapes(config, inputs)


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    return gated_decoder(config, weights, kernels, ["in_proj_qkvz", "in_proj_ba"])
