"""Parts that several architectures share, over tensors. Nothing here knows an architecture or where a weight lives."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
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


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] scaled to unit root mean square, times weight [H]. Source: Zhang and Sennrich 2019."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


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
    """Rotary position embedding over the full head, halves rotated against each other. Source: Su et al. 2021."""

    def __init__(self, head_dim: int, theta: float, yarn: YarnScaling | None = None) -> None:
        self._frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # [D/2]
        self._scale = 1.0
        if yarn is not None:
            self._frequencies = yarn.stretch(self._frequencies, head_dim, theta)
            self._scale = yarn.attention_factor

    def table(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin [T, 1, D] of positions start to start + count."""
        angles = torch.outer(torch.arange(start, start + count, dtype=torch.float32), self._frequencies)
        angles = torch.cat((angles, angles), dim=-1)[:, None, :]
        return angles.cos() * self._scale, angles.sin() * self._scale

    @staticmethod
    def rotate(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """x [T, heads, D]."""
        cos, sin = table
        low, high = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-high, low), dim=-1) * sin


@dataclass(frozen=True)
class GroupedQueryAttention:
    """Causal attention in which groups of query heads share a key and value head; the norms are per head and optional."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    kernels: Kernels
    weights: Weights  # q_proj, k_proj, v_proj, o_proj [, q_norm, k_norm, sinks]
    window: int | None = None

    def __call__(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], kv: KvCache) -> torch.Tensor:
        linear, w, count = self.kernels.linear, self.weights, len(x)
        q = linear(x, w.matrix("q_proj")).view(count, self.num_heads, self.head_dim)  # [T, Hq, D]
        k = linear(x, w.matrix("k_proj")).view(count, self.num_kv_heads, self.head_dim)  # [T, Hkv, D]
        v = linear(x, w.matrix("v_proj")).view(count, self.num_kv_heads, self.head_dim)  # [T, Hkv, D]
        if w.has("q_norm.weight"):
            q = rms_norm(q, w.vector("q_norm.weight"), self.eps)
            k = rms_norm(k, w.vector("k_norm.weight"), self.eps)
        keys, values = kv.append(self.layer, Rope.rotate(k, rope), v)  # [Hkv, S, D]
        sinks = w.vector("sinks") if w.has("sinks") else None
        mixed = self.kernels.attention(Rope.rotate(q, rope), keys, values, window=self.window, sinks=sinks)  # [T, Hq, D]
        return linear(mixed.flatten(1), w.matrix("o_proj"))  # [T, H]


def embed(table: Weight, tokens: torch.Tensor) -> torch.Tensor:
    """Rows of an unquantised embedding [V, H] as fp32 [T, H]."""
    return plain_tensor(table)[tokens].float()


def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Router over all experts [T, E]: the k largest probabilities as ids [T, k] and weights [T, k]."""
    weights, ids = torch.topk(logits.softmax(dim=-1), top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights
