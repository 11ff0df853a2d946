"""The usual router with its experts, and routers that the kernels have no single call for: scores by sigmoid, a bias that only
selects, groups of experts.

A router is made once for a layer: x [T, H] to ids int32 [T, k] and weights fp32 [T, k].
"""

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.spec import Router
from engine.kernels.weights import Weight
from engine.models.layers import Experts, Weights


class RoutedExperts:
    """A layer's experts, chosen by the softmax of `mlp.gate`."""

    def __init__(self, layer: int, weights: Weights, kernels: Kernels, top_k: int, *, renormalise: bool) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("mlp.gate"), top_k, renormalise=renormalise)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def sigmoid_router(
    kernels: Kernels,
    weight: Weight,
    bias: torch.Tensor | None,
    top_k: int,
    *,
    groups: int = 1,
    top_groups: int = 1,
    renormalise: bool = True,
    scale: float = 1.0,
    epsilon: float = 1e-20,
) -> Router:
    """The best of sigmoid + bias [E], weighted by the sigmoid alone; of several groups only the `top_groups` are asked whose
    two best add up to most. Source: DeepSeek-AI 2024, DeepSeek-V3."""

    def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = kernels.linear(x, weight).sigmoid()  # [T, E]
        wanted = scores if bias is None else scores + bias
        if groups > 1:
            of_groups = wanted.view(len(x), groups, -1).topk(2, dim=-1).values.sum(dim=-1)  # [T, G]
            wanted = wanted.masked_fill(_outside(of_groups, top_groups, wanted.shape[1]), float("-inf"))
        ids = wanted.topk(top_k, dim=-1).indices  # [T, k]
        weights = scores.gather(1, ids)
        if renormalise:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + epsilon)
        return ids.int(), weights * scale

    return route


def softmax_router(
    kernels: Kernels, weight: Weight, top_k: int, *, groups: int = 1, top_groups: int = 1, scale: float = 1.0
) -> Router:
    """The best of the softmax over all, as they are; of several groups only the `top_groups` with the best expert are asked.

    Source: DeepSeek-AI 2024, DeepSeek-V2.
    """

    def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = kernels.linear(x, weight).softmax(dim=-1)  # [T, E]
        if groups > 1:
            best = scores.view(len(x), groups, -1).amax(dim=-1)  # [T, G]
            scores = scores.masked_fill(_outside(best, top_groups, scores.shape[1]), 0.0)
        weights, ids = scores.topk(top_k, dim=-1)
        return ids.int(), weights * scale

    return route


def _outside(of_groups: torch.Tensor, top_groups: int, num_experts: int) -> torch.Tensor:
    """True for the experts [T, E] of all but the best groups, from the groups' scores [T, G]."""
    outside = torch.ones_like(of_groups, dtype=torch.bool).scatter_(1, of_groups.topk(top_groups, dim=-1).indices, False)
    return outside.repeat_interleave(num_experts // of_groups.shape[1], dim=1)
