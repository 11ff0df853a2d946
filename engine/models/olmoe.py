"""OLMoE (1B-7B): attention with queries and keys normed over all heads, every layer a mixture.

Source: Muennighoff et al. 2024, OLMoE, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.attention import WideNormAttention
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_of, pre_norm_decoder, wide_norm_shapes
from engine.models.hf_config import HfConfig
from engine.models.layers import Weights
from engine.models.routing import RoutedExperts


@dataclass(frozen=True)
class Config(DecoderConfig):
    renormalise: bool
    clip: float | None  # of queries, keys and values

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("attention_bias", False)
        return cls(
            **read_common(hf, expert_size="intermediate_size", eps=1e-5),
            renormalise=hf.flag("norm_topk_prob", False),
            clip=hf.number("clip_qkv", 0.0) or None,
        )


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config) | wide_norm_shapes(block, config)
        shapes[f"{block}.mlp.gate"] = (config.num_experts, config.hidden_size)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    def attention(_: int, own: Weights) -> WideNormAttention:
        return WideNormAttention(config, own, kernels, config.clip)

    def experts(layer: int, own: Weights) -> RoutedExperts:
        return RoutedExperts(layer, own, kernels, config.top_k, renormalise=config.renormalise)

    return pre_norm_decoder(config, weights, kernels, attention, experts)
