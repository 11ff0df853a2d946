"""Parts that several architectures share, over tensors. Nothing here knows an architecture or where a weight lives."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.kernels.reference import Reference
from engine.kv.cache import KvCache

# (layer, x [T, H], ids [T, k], weights [T, k]) -> [T, H]
Experts = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(Protocol):
    """One forward pass over the tokens that follow what `kv` holds."""

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts) -> torch.Tensor:
        """int64 [T] to the fp32 logits [V] after the last. Writes T rows of `kv`; the caller advances it."""


@dataclass(frozen=True)
class Weights:
    """Dense tensors by published name, with a prefix that `at` extends."""

    tensors: dict[str, torch.Tensor]
    prefix: str = ""

    def at(self, part: str) -> "Weights":
        return Weights(self.tensors, f"{self.prefix}{part}.")

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[self.prefix + name]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.tensors

    def vector(self, name: str) -> torch.Tensor:
        """A small tensor in fp32, for norms and biases."""
        return self[name].float()


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
    kernels: Reference
    weights: Weights  # q_proj, k_proj, v_proj, o_proj [, q_norm, k_norm]
    window: int | None = None
    sinks: torch.Tensor | None = None  # [Hq]

    def __call__(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor], kv: KvCache) -> torch.Tensor:
        w, count = self.weights, len(x)
        q = self._project("q_proj", x).view(count, self.num_heads, self.head_dim)  # [T, Hq, D]
        k = self._project("k_proj", x).view(count, self.num_kv_heads, self.head_dim)  # [T, Hkv, D]
        v = self._project("v_proj", x).view(count, self.num_kv_heads, self.head_dim)  # [T, Hkv, D]
        if "q_norm.weight" in w:
            q = rms_norm(q, w.vector("q_norm.weight"), self.eps)
            k = rms_norm(k, w.vector("k_norm.weight"), self.eps)
        keys, values = kv.append(self.layer, Rope.rotate(k, rope), v)  # [Hkv, S, D]
        q = Rope.rotate(q, rope).transpose(0, 1)  # [Hq, T, D]
        mixed = attend(q, keys, values, self.window, self.sinks)  # [Hq, T, D]
        return self._project("o_proj", mixed.transpose(0, 1).reshape(count, -1))  # [T, H]

    def _project(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = self.kernels.linear(x, self.weights[f"{name}.weight"])
        return y + self.weights.vector(f"{name}.bias") if f"{name}.bias" in self.weights else y


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None = None, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """softmax(q kᵀ / √D) v, each of T queries [Hq, T, D] seeing the S - T keys [Hkv, S, D] before them and its own.

    `sinks` [Hq] are logits that take part in the softmax and bring no value. Source: gpt-oss model card 2025.
    """
    count, total = q.shape[1], keys.shape[1]
    first = 0 if window is None else max(0, total - count - window + 1)
    keys, values = keys[:, first:], values[:, first:]
    mask = None
    if count > 1:
        position = torch.arange(total - count, total)[:, None]  # [T, 1]
        seen = torch.arange(first, total)[None, :]  # [1, S]
        mask = seen <= position if window is None else (seen <= position) & (seen > position - window)
    if sinks is not None:
        return _attend_with_sinks(q, keys, values, mask, sinks)
    return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask, enable_gqa=True)[0]


def _attend_with_sinks(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, sinks: torch.Tensor
) -> torch.Tensor:
    heads, count, dim = q.shape
    grouped = q.view(len(keys), -1, count, dim)  # [Hkv, G, T, D]
    logits = grouped @ keys[:, None].transpose(-1, -2) / math.sqrt(dim)  # [Hkv, G, T, S]
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    sink = sinks.view(len(keys), -1, 1, 1).expand(-1, -1, count, 1)
    shares = torch.cat((logits, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return (shares @ values[:, None]).view(heads, count, -1)


def softmax_top_k(logits: torch.Tensor, top_k: int, *, renormalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Router over all experts [T, E]: the k largest probabilities as ids [T, k] and weights [T, k]."""
    weights, ids = torch.topk(logits.softmax(dim=-1), top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return ids, weights
