"""Parts that several architectures share, over tensors. Nothing here knows an architecture or where a weight lives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.reference import dequantise
from engine.kernels.spec import FeedForward
from engine.kernels.weights import Weight, plain_tensor
from engine.kv.cache import KvCache

SWIGLU_PARTS = ("gate_proj", "up_proj", "down_proj")
# (layer, x [T, H], ids [T, k], weights [T, k]) -> [T, H]
Experts = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(Protocol):
    """One forward pass over the tokens that follow what `kv` holds."""

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts, places: torch.Tensor | None = None) -> torch.Tensor:
        """int64 [T] to the fp32 logits [V] after the last. Writes T rows of `kv`; the caller advances it.

        `places` [T] are the tokens' rows in an embedding of which only some are in memory; None where the table is whole.
        """


@dataclass(frozen=True)
class Weights:
    """Dense weights by published name, under a prefix that `at` extends: matrices by stem, tables of whole numbers, all else as
    fp32 vectors."""

    matrices: dict[str, Weight]
    vectors: dict[str, torch.Tensor]
    prefix: str = ""
    tables: dict[str, torch.Tensor] = field(default_factory=dict)

    def at(self, part: str) -> "Weights":
        return Weights(self.matrices, self.vectors, f"{self.prefix}{part}.", self.tables)

    def matrix(self, stem: str) -> Weight:
        """[out, in] with its bias, in whatever format it is published."""
        return self.matrices[self.prefix + stem]

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight, sinks and the like, fp32."""
        return self.vectors[self.prefix + name]

    def table(self, name: str) -> torch.Tensor:
        """Whole numbers in their published shape and type."""
        return self.tables[self.prefix + name]

    def has(self, name: str) -> bool:
        return any(self.prefix + name in kind for kind in (self.matrices, self.vectors, self.tables))


def swiglu(weights: Weights, kernels: Kernels) -> FeedForward:
    """A dense feed-forward part with gate_proj, up_proj and down_proj: [T, H] to [T, H]."""
    return kernels.swiglu(*(weights.matrix(part) for part in SWIGLU_PARTS))


def gated_expert(weights: Weights, kernels: Kernels) -> FeedForward:
    """The expert that every token goes through, times a gate of its own: [T, H] to [T, H]."""
    expert, gate = swiglu(weights.at("shared_expert"), kernels), dequantise(weights.matrix("shared_expert_gate"))[0]
    return lambda x: expert(x).mul_((x @ gate).sigmoid_()[:, None])  # one row is not worth a hand-off to the kernels' threads


def embed(table: Weight, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of an unquantised embedding [V, H] as fp32 [T, H]."""
    return plain_tensor(table)[tokens].float()
