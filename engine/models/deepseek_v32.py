"""DeepSeek-V3.2: DeepSeek-V3's layers, whose attention sees the tokens that an index has chosen.

Source: DeepSeek-AI 2025, DeepSeek-V3.2, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.decoder import Decoder, Shapes, frame_of
from engine.models.hf_config import HfConfig
from engine.models.latent import latent_decoder, latent_shapes
from engine.models.layers import Weights
from engine.models.shared_experts import SharedExperts, part_shapes, read_shared, sigmoid_part, sparse_by_kind
from engine.models.sparse_latent import SparseConfig, index_shapes, read_sparse, sparse_mixes


@dataclass(frozen=True)
class Config(SparseConfig):
    shared: SharedExperts

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        return cls(**read_layers(hf, interleaved=False, has_index=[True] * hf.num_layers()))


def read_layers(hf: HfConfig, **defaults: Any) -> dict[str, Any]:
    """The fields of `Config`; `defaults` as `read_sparse` takes them."""
    hf.expect("scoring_func", "sigmoid")
    hf.expect("topk_method", "noaux_tc")
    hf.expect("moe_layer_freq", 1)
    hf.expect("mlp_bias", False)
    experts = ("n_routed_experts", "num_local_experts")
    common = read_sparse(hf, experts=experts, moe_layers=sparse_by_kind(hf, 3), **defaults)
    return common | {"shared": read_shared(hf, common, renormalise=True)}


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= latent_shapes(block, config) | index_shapes(block, layer, config)
        shapes |= part_shapes(f"{block}.mlp", layer, config, config.shared)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    parts = [
        sigmoid_part(layer, config, config.shared, weights.at(f"model.layers.{layer}.mlp"), kernels)
        for layer in range(config.num_layers)
    ]
    return latent_decoder(config, weights, kernels, parts, sparse_mixes(config, weights, kernels))
