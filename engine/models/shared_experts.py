"""Experts as DeepSeek and GLM have them: routed ones beside one that every token goes through; the first layers are dense."""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.spec import Router
from engine.models.config import DecoderConfig
from engine.models.decoder import LayerPart, Shapes, dense, mlp_shapes
from engine.models.geometry import MOST_LAYERS
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, swiglu
from engine.models.routing import sigmoid_router


@dataclass(frozen=True)
class SharedExperts:
    """The part of a configuration."""

    dense_size: int
    shared_size: int  # 0 for none
    groups: int
    top_groups: int
    renormalise: bool
    routed_scale: float


def read_shared(hf: HfConfig, common: dict[str, Any], *, renormalise: bool) -> SharedExperts:
    """`common` as `read_common` gives it. Raises `EngineError` naming a key."""
    groups, experts = hf.integer("n_group", 1), common["num_experts"]
    hf.divisible("n_routed_experts", experts, "n_group", groups)
    top_groups = hf.integer("topk_group", groups)
    if top_groups > groups or common["top_k"] > experts // groups * top_groups:
        raise hf.error(f"topk_group {top_groups} of n_group {groups} has not {common['top_k']} experts to choose")
    return SharedExperts(
        dense_size=hf.integer("intermediate_size"),
        shared_size=hf.integer("n_shared_experts", 0, minimum=0) * common["expert_size"],
        groups=groups,
        top_groups=top_groups,
        renormalise=hf.flag("norm_topk_prob", renormalise),
        routed_scale=hf.positive("routed_scaling_factor", 1.0),
    )


def sparse_by_kind(hf: HfConfig, first_dense: int) -> list[int]:
    """Layers that are mixtures: by words for each, or all after the first so many, `first_dense` where the file is silent."""
    num_layers, first = hf.num_layers(), hf.integer("first_k_dense_replace", first_dense, minimum=0, maximum=MOST_LAYERS)
    kinds = hf.kinds("mlp_layer_types", num_layers, ("dense", "sparse"), ["dense"] * first + ["sparse"] * (num_layers - first))
    return [layer for layer, kind in enumerate(kinds) if kind == "sparse"]


def part_shapes(part: str, layer: int, config: DecoderConfig, shared: SharedExperts, *, bias: bool = True) -> Shapes:
    """Of a layer's feed-forward part under that name; `bias` of the selection."""
    if layer not in config.moe_layers:
        return mlp_shapes(part, config.hidden_size, shared.dense_size)
    shapes: Shapes = {f"{part}.gate": (config.num_experts, config.hidden_size)}
    if bias:
        shapes[f"{part}.gate.e_score_correction_bias"] = (config.num_experts,)
    if shared.shared_size:
        shapes |= mlp_shapes(f"{part}.shared_experts", config.hidden_size, shared.shared_size)
    return shapes


class Mixture:
    """Routed and shared experts of a layer."""

    def __init__(self, layer: int, weights: Weights, kernels: Kernels, route: Router) -> None:
        self._layer, self._route = layer, route
        self._shared = swiglu(weights.at("shared_experts"), kernels) if weights.has("shared_experts.gate_proj") else None

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        y = experts(self._layer, x, *self._route(x))
        return y if self._shared is None else y + self._shared(x)


def sigmoid_part(layer: int, config: DecoderConfig, shared: SharedExperts, weights: Weights, kernels: Kernels) -> LayerPart:
    """A layer's feed-forward part, routed by sigmoid with a bias; `weights` are its own."""
    if layer not in config.moe_layers:
        return dense(weights, kernels)
    route = sigmoid_router(
        kernels, weights.matrix("gate"), weights.vector("gate.e_score_correction_bias"), config.top_k,
        groups=shared.groups, top_groups=shared.top_groups, renormalise=shared.renormalise, scale=shared.routed_scale,
    )  # fmt: skip
    return Mixture(layer, weights, kernels, route)
