"""Parts that several architectures share, over tensors. Nothing here knows an architecture or where a weight lives."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.spec import AttentionSpec, Rotation
from engine.kernels.weights import Weight, plain_tensor
from engine.kv.cache import KvCache

# (layer, x [T, H], ids [T, k], weights [T, k]) -> [T, H]
Experts = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(Protocol):
    """One forward pass over the tokens that follow what `kv` holds."""

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts) -> torch.Tensor:
        """int64 [T] to the fp32 logits [V] after the last. Writes T rows of `kv`; the caller advances it."""


@dataclass(frozen=True)
class Weights:
    """Dense weights by published name, under a prefix that `at` extends: matrices by stem, all else as fp32 vectors."""

    matrices: dict[str, Weight]
    vectors: dict[str, torch.Tensor]
    prefix: str = ""

    def at(self, part: str) -> "Weights":
        return Weights(self.matrices, self.vectors, f"{self.prefix}{part}.")

    def matrix(self, stem: str) -> Weight:
        """[out, in] with its bias, in whatever format it is published."""
        return self.matrices[self.prefix + stem]

    def vector(self, name: str) -> torch.Tensor:
        """A norm's weight, sinks and the like, fp32."""
        return self.vectors[self.prefix + name]

    def has(self, name: str) -> bool:
        return self.prefix + name in self.matrices or self.prefix + name in self.vectors


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Stretches rotary embedding over a longer context: slow rotations by `factor`, fast ones not at all.

    Source: Peng et al. 2023, YaRN; the ramp's ends are rounded outwards unless `is_exact`.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_exact: bool = False

    @property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def stretch(self, frequencies: torch.Tensor, head_dim: int, theta: float) -> torch.Tensor:
        """Frequencies [D/2], blended between unchanged and divided by `factor`."""

        def dimension(rotations: float) -> float:
            return head_dim * math.log(self.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if not self.is_exact:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        ramp = ((torch.arange(head_dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        return frequencies * (1 - ramp) + frequencies / self.factor * ramp


class Rope:
    """Angles of the rotary position embedding. Source: Su et al. 2021."""

    _STEP = 1024  # positions that are made at a time

    def __init__(self, rotary_dim: int, theta: float, yarn: YarnScaling | None = None) -> None:
        self._frequencies = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)  # [R/2]
        self._scale = 1.0
        if yarn is not None:
            self._frequencies = yarn.stretch(self._frequencies, rotary_dim, theta)
            self._scale = yarn.attention_factor
        self._cosine = self._sine = torch.empty(0, rotary_dim // 2)

    def table(self, start: int, count: int) -> Rotation:
        """Cosine and sine [T, R/2] of positions start to start + count."""
        end = start + count
        if end > len(self._cosine):
            positions = torch.arange(-(-end // self._STEP) * self._STEP, dtype=torch.float32)
            angles = torch.outer(positions, self._frequencies)
            self._cosine, self._sine = angles.cos() * self._scale, angles.sin() * self._scale
        return self._cosine[start:end], self._sine[start:end]


def attention_spec(
    weights: Weights, num_heads: int, num_kv_heads: int, head_dim: int, eps: float, window: int | None = None
) -> AttentionSpec:
    """Of a layer in the usual names: both norms, self_attn with its projections and, where they exist, head norms and sinks."""
    own = weights.at("self_attn")

    def optional(name: str) -> torch.Tensor | None:
        return own.vector(name) if own.has(name) else None

    q, k, v, o = (own.matrix(f"{name}_proj") for name in "qkvo")
    return AttentionSpec(
        q, k, v, o, num_heads, num_kv_heads, head_dim,
        weights.vector("input_layernorm.weight"), weights.vector("post_attention_layernorm.weight"), eps, head_dim**-0.5,
        q_norm=optional("q_norm.weight"), k_norm=optional("k_norm.weight"), sinks=optional("sinks"), window=window,
    )  # fmt: skip


def embed(table: Weight, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of an unquantised embedding [V, H] as fp32 [T, H]."""
    return plain_tensor(table)[tokens].float()
