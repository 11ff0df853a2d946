"""GLM-4.5, 4.6 and 4.7 with their Air releases: grouped-query attention turned in part, DeepSeek's experts.

Source: GLM team 2025, GLM-4.5, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_of, pre_norm_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Weights
from engine.models.shared_experts import SharedExperts, part_shapes, read_shared, sigmoid_part


@dataclass(frozen=True)
class Config(DecoderConfig):
    shared: SharedExperts
    rotary_dim: int
    has_bias: bool  # of queries, keys and values
    has_head_norms: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        sparse = range(hf.integer("first_k_dense_replace", 1, minimum=0), hf.num_layers())
        common = read_common(hf, experts=("n_routed_experts", "num_local_experts"), moe_layers=sparse, eps=1e-5)
        return cls(
            **common,
            shared=read_shared(hf, common, renormalise=True),
            rotary_dim=hf.rotary_dim(common["head_dim"], 0.5),
            has_bias=hf.flag("attention_bias", False),
            has_head_norms=hf.flag("use_qk_norm", False),
        )


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkv" if config.has_bias else "")
        if config.has_head_norms:
            shapes |= {f"{block}.self_attn.{name}_norm.weight": (config.head_dim,) for name in "qk"}
        shapes |= part_shapes(f"{block}.mlp", layer, config, config.shared)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    return pre_norm_decoder(
        config, weights, kernels,
        attention=fused(config, kernels),
        feed_forward=lambda layer, own: sigmoid_part(layer, config, config.shared, own.at("mlp"), kernels),
        rotary_dim=config.rotary_dim,
    )  # fmt: skip
