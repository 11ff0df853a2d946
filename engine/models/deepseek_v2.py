"""DeepSeek-V2 (V2, V2-Lite, Coder-V2): latent attention, routing by softmax, of V2 within the best groups.

Source: DeepSeek-AI 2024, DeepSeek-V2, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

from engine.kernels.kernels import Kernels
from engine.models.decoder import Decoder, LayerPart, Shapes, dense, frame_of
from engine.models.hf_config import HfConfig
from engine.models.latent import LatentConfig, latent_decoder, latent_shapes, read_latent
from engine.models.layers import Weights
from engine.models.routing import softmax_router
from engine.models.shared_experts import Mixture, SharedExperts, part_shapes, read_shared


@dataclass(frozen=True)
class Config(LatentConfig):
    shared: SharedExperts
    is_grouped: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("scoring_func", "softmax")
        hf.expect("norm_topk_prob", False)
        hf.expect("moe_layer_freq", 1)
        hf.expect("topk_method", "greedy", "group_limited_greedy")
        sparse = range(hf.integer("first_k_dense_replace", 0, minimum=0), hf.num_layers())
        common = read_latent(hf, experts=("n_routed_experts", "num_experts"), moe_layers=sparse)
        return cls(
            **common,
            shared=read_shared(hf, common, renormalise=False),
            is_grouped=values.get("topk_method") == "group_limited_greedy",
        )


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= latent_shapes(block, config) | part_shapes(f"{block}.mlp", layer, config, config.shared, bias=False)
    return shapes


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    def part(layer: int, own: Weights) -> LayerPart:
        if layer not in config.moe_layers:
            return dense(own, kernels)
        shared = config.shared
        groups, top_groups = (shared.groups, shared.top_groups) if config.is_grouped else (1, 1)
        route = softmax_router(
            kernels, own.matrix("gate"), config.top_k, groups=groups, top_groups=top_groups, scale=shared.routed_scale
        )
        return Mixture(layer, own, kernels, route)

    parts = [part(layer, weights.at(f"model.layers.{layer}.mlp")) for layer in range(config.num_layers)]
    return latent_decoder(config, weights, kernels, parts)
