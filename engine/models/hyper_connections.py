"""Several residual streams beside one another, mixed by weights that follow from them (manifold-constrained hyper-connections).

Source: Xie et al. 2026, mHC; DeepSeek-AI 2026, DeepSeek-V4, section 2.2, and the published weights.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.weights import Weight, plain
from engine.models.decoder import Plain, Shapes
from engine.models.layers import Weights


@dataclass(frozen=True, slots=True)
class Streams:
    """The part of a configuration."""

    count: int
    sinkhorn_steps: int
    eps: float  # of the weights
    norm_eps: float


def connection_shapes(name: str, streams: Streams, hidden_size: int) -> Shapes:
    """Of `HyperConnection` under that name."""
    outputs = streams.count * (2 + streams.count)
    return _shapes(name, outputs, streams.count * hidden_size, scales=3)


def collapse_shapes(name: str, streams: Streams, hidden_size: int) -> Shapes:
    """Of `collapse` under that name."""
    return _shapes(name, streams.count, streams.count * hidden_size, scales=1)


def _shapes(name: str, outputs: int, inputs: int, scales: int) -> Shapes:
    return {f"{name}_fn": Plain((outputs, inputs)), f"{name}_base": (outputs,), f"{name}_scale": (scales,)}


class HyperConnection:
    """Reads one input of a layer's part off the streams, and adds its output to a mixture of them."""

    def __init__(self, name: str, streams: Streams, weights: Weights, kernels: Kernels) -> None:
        self._streams, self._kernels = streams, kernels
        self._projection, self._base = _projection(name, weights)
        count = streams.count
        before, after, among = weights.vector(f"{name}_scale")
        self._scale = torch.cat((before.expand(count), after.expand(count), among.expand(count * count)))
        device = self._base.device
        one, all_ones = torch.eye(count, device=device), torch.ones(count, count, device=device)
        self._over_rows, self._over_columns = torch.kron(one, all_ones), torch.kron(all_ones, one)  # [S * S, S * S]
        self._eps = torch.full((count * count,), streams.eps, device=device)

    def __call__(self, x: torch.Tensor, part: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """x [T, S, H] in place; `part` maps [T, H] to [T, H]."""
        count = self._streams.count
        weights = _project(x, self._projection, self._streams, self._kernels) * self._scale + self._base
        before, after, among = torch.split(weights, [count, count, count * count], dim=-1)
        y = part(_collapsed(x, before.sigmoid() + self._streams.eps))
        mixed = self._balanced(among.view(-1, count, count)).transpose(1, 2) @ x  # [T, S, H]
        torch.baddbmm(mixed, 2 * after.sigmoid()[..., None], y[:, None], out=x)

    def _balanced(self, among: torch.Tensor) -> torch.Tensor:
        """[T, S, S] to positive matrices whose rows and columns add up to nearly 1. Source: Sinkhorn and Knopp 1967."""
        flat = (among.softmax(dim=-1) + self._streams.eps).flatten(1)
        sums = torch.empty_like(flat)  # of the row or column that each number is in; by products it takes half as long
        flat /= torch.addmm(self._eps, flat, self._over_columns, out=sums)
        for _ in range(self._streams.sinkhorn_steps - 1):
            flat /= torch.addmm(self._eps, flat, self._over_rows, out=sums)
            flat /= torch.addmm(self._eps, flat, self._over_columns, out=sums)
        return flat.view_as(among)


def collapse(name: str, streams: Streams, weights: Weights, kernels: Kernels) -> Callable[[torch.Tensor], torch.Tensor]:
    """What is read after the last layer: streams [T, S, H] to [T, H]."""
    projection, base = _projection(name, weights)
    scale = weights.vector(f"{name}_scale")
    return lambda x: _collapsed(x, (_project(x, projection, streams, kernels) * scale + base).sigmoid() + streams.eps)


def _projection(name: str, weights: Weights) -> tuple[Weight, torch.Tensor]:
    base = weights.vector(f"{name}_base")
    return plain(weights.vector(f"{name}_fn").view(len(base), -1)), base


def _project(x: torch.Tensor, projection: Weight, streams: Streams, kernels: Kernels) -> torch.Tensor:
    """All streams [T, S, H] as one normed vector, times a matrix [O, S * H]: [T, O]."""
    flat = x.flatten(1)
    return kernels.linear(F.rms_norm(flat, flat.shape[1:], eps=streams.norm_eps), projection)


def _collapsed(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Streams [T, S, H] by weights [T, S] to [T, H]."""
    return (weights[:, None] @ x)[:, 0]
