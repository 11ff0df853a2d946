"""Qwen3.5 and Qwen3.6 (35B-A3B, 122B-A10B, 397B-A17B), their text: the layers of `gated_delta` with a matrix for each input."""

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
        return cls(**read_gated(HfConfig(values, name)), dense_size=0, renormalise=True)  # no layer is dense


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    hidden, values, heads = config.hidden_size, config.value_heads * config.value_dim, config.value_heads
    rows = {"qkv": config.conv_channels, "z": values, "b": heads, "a": heads}
    return gated_shapes(config, lambda part: {f"{part}.in_proj_{name}": (count, hidden) for name, count in rows.items()})


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    return gated_decoder(config, weights, kernels, [f"in_proj_{name}" for name in ("qkv", "z", "b", "a")])
