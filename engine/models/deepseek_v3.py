"""DeepSeek-V3 (V3, V3.1, R1) and the text of Kimi K2 to K2.7: latent attention, experts in groups routed by sigmoid, the first
layers dense.

Source: DeepSeek-AI 2024, DeepSeek-V3 technical report; Moonshot AI 2025, Kimi K2; and the published configurations.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.decoder import Decoder, Shapes, frame_of
from engine.models.hf_config import HfConfig
from engine.models.latent import LatentConfig, latent_decoder, latent_shapes, read_latent
from engine.models.layers import Weights
from engine.models.shared_experts import SharedExperts, part_shapes, read_shared, sigmoid_part


@dataclass(frozen=True)
class Config(LatentConfig):
    shared: SharedExperts

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("scoring_func", "sigmoid")
        hf.expect("topk_method", "noaux_tc")
        hf.expect("moe_layer_freq", 1)
        sparse = range(hf.integer("first_k_dense_replace", 3, minimum=0), hf.num_layers())
        common = read_latent(hf, experts=("n_routed_experts", "num_local_experts"), moe_layers=sparse)
        return cls(**common, shared=read_shared(hf, common, renormalise=True))


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= latent_shapes(block, config) | part_shapes(f"{block}.mlp", layer, config, config.shared)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    parts = [
        sigmoid_part(layer, config, config.shared, weights.at(f"model.layers.{layer}.mlp"), kernels)
        for layer in range(config.num_layers)
    ]
    return latent_decoder(config, weights, kernels, parts)
