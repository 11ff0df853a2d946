"""Grouped-query attention of a layer: what the kernels know as one call, and what is composed around `Kernels.attention`."""

from collections.abc import Callable, Sequence

import torch

from engine.kernels.kept import keep, row_of, upto
from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm, rotate
from engine.kernels.spec import AttentionBlock, AttentionSpec, Rotation, Start
from engine.models.config import DecoderConfig
from engine.models.layers import Weights

Attention = Callable[[int, Weights], AttentionBlock]  # of a layer's number and its own weights


def fused(
    config: DecoderConfig, kernels: Kernels, windows: Sequence[int | None] | None = None, scale: float | None = None
) -> Attention:
    """Pre-norm attention in the usual names as one call of the kernels; `windows` by layer."""

    def make(layer: int, weights: Weights) -> AttentionBlock:
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        window = windows[layer] if windows is not None else None
        return kernels.attention_block(attention_spec(weights, *heads, config.rms_eps, window, scale))

    return make


def attention_spec(
    weights: Weights,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    eps: float,
    window: int | None = None,
    scale: float | None = None,
) -> AttentionSpec:
    """Of a layer in the usual names: both norms, self_attn with its projections and, where they exist, head norms and sinks."""
    own = weights.at("self_attn")

    def optional(name: str) -> torch.Tensor | None:
        return own.vector(name) if own.has(name) else None

    q, k, v, o = (own.matrix(f"{name}_proj") for name in "qkvo")
    return AttentionSpec(
        q, k, v, o, num_heads, num_kv_heads, head_dim,
        weights.vector("input_layernorm.weight"), weights.vector("post_attention_layernorm.weight"), eps,
        head_dim**-0.5 if scale is None else scale,
        q_norm=optional("q_norm.weight"), k_norm=optional("k_norm.weight"), sinks=optional("sinks"), window=window,
    )  # fmt: skip


def attend(
    kernels: Kernels,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    rotation: Rotation,
    cache: tuple[torch.Tensor, torch.Tensor],
    start: Start,
    scale: float,
    window: int | None = None,
) -> torch.Tensor:
    """Turns q [T, Hq, D] and k [T, Hkv, D], writes k and v after `start` tokens of the cache, and mixes: to [T, Hq * D].

    For attention that `Kernels.attention_block` does not know.
    """
    keys, values = cache
    keep(keys, start, rotate(k, rotation))
    keep(values, start, v)
    seen = (upto(part, start, len(q)) for part in (keys, values))
    mixed = kernels.attention(rotate(q, rotation), *seen, scale=scale, window=window, row=row_of(start))  # [T, Hq, D]
    return mixed.flatten(1)


class WideNormAttention:
    """An `AttentionBlock` whose queries and keys are normed over all heads at once, and may be clipped to +-`clip`."""

    def __init__(self, config: DecoderConfig, weights: Weights, kernels: Kernels, clip: float | None = None) -> None:
        self._config, self._kernels, self._clip = config, kernels, clip
        self._input_norm, self._post_norm = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        own = weights.at("self_attn")
        self._q, self._k, self._v, self._o = (own.matrix(f"{name}_proj") for name in "qkvo")
        self._q_norm, self._k_norm = own.vector("q_norm.weight"), own.vector("k_norm.weight")

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start
    ) -> torch.Tensor:
        eps, dim = self._config.rms_eps, self._config.head_dim
        normed = rms_norm(x, self._input_norm, eps)
        q, k, v = (self._kernels.linear(normed, weight) for weight in (self._q, self._k, self._v))
        q, k = rms_norm(q, self._q_norm, eps), rms_norm(k, self._k_norm, eps)
        if self._clip is not None:
            q, k, v = (part.clamp(-self._clip, self._clip) for part in (q, k, v))
        q, k, v = (part.view(len(x), -1, dim) for part in (q, k, v))  # [T, heads, D]
        mixed = attend(self._kernels, q, k, v, rotation, (keys, values), start, dim**-0.5)
        x += self._kernels.linear(mixed, self._o)
        return rms_norm(x, self._post_norm, eps)
