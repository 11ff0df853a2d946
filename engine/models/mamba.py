"""Mamba-2 as a layer's mixer: a short convolution, a memory that decays, a gate and a norm, between two products.

Source: Dao and Gu 2024, Transformers are SSMs, and the published configurations. It knows neither what is before nor after it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kernels.delta import short_conv
from engine.kernels.kernels import Kernels
from engine.kernels.mamba import gated_group_norm, selective_scan
from engine.kv.cache import KvCache
from engine.models.decoder import Shapes
from engine.models.hf_config import HfConfig
from engine.models.layers import Weights


@dataclass(frozen=True)
class MambaSizes:
    """Of the mixer of each such layer."""

    heads: int
    head_dim: int
    groups: int  # of heads that share what is written and read by
    state: int
    conv_width: int
    has_conv_bias: bool
    has_bias: bool  # of the products

    @property
    def inner(self) -> int:
        """Values of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Values, what they are written by and what is read by, one after the other."""
        return self.inner + 2 * self.groups * self.state

    @property
    def states(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of what a layer remembers: the convolution's last inputs, the memories."""
        return (self.conv_width - 1, self.conv_channels), (self.heads, self.state, self.head_dim)

    @property
    def state_values(self) -> int:
        return sum(map(math.prod, self.states))


def read_mamba(hf: HfConfig, hidden_size: int) -> MambaSizes:
    """In the words of Bamba and Granite. Raises `EngineError` naming a key."""
    hf.unlimited("time_step_limit")
    heads, groups = hf.integer("mamba_n_heads", 128), hf.integer("mamba_n_groups", 1)
    hf.divisible("mamba_n_heads", heads, "mamba_n_groups", groups)
    inner = hf.integer("mamba_expand", 2) * hidden_size
    hf.divisible("mamba_expand * hidden_size", inner, "mamba_n_heads", heads)
    hf.expect("mamba_d_head", "auto", inner // heads)
    return MambaSizes(
        heads=heads,
        head_dim=inner // heads,
        groups=groups,
        state=hf.integer("mamba_d_state", 256),
        conv_width=hf.integer("mamba_d_conv", 4, minimum=2),
        has_conv_bias=hf.flag("mamba_conv_bias", True),
        has_bias=hf.flag("mamba_proj_bias", False),
    )


def mamba_shapes(part: str, hidden_size: int, sizes: MambaSizes) -> Shapes:
    """Of `Mamba` under that name."""
    channels, projected = sizes.conv_channels, sizes.inner + sizes.conv_channels + sizes.heads
    shapes: Shapes = {
        f"{part}.in_proj": (projected, hidden_size),
        f"{part}.conv1d.weight": (channels, 1, sizes.conv_width),
        f"{part}.norm.weight": (sizes.inner,),
        f"{part}.out_proj": (hidden_size, sizes.inner),
    }
    shapes |= {f"{part}.{name}": (sizes.heads,) for name in ("A_log", "D", "dt_bias")}
    if sizes.has_conv_bias:
        shapes[f"{part}.conv1d.bias"] = (channels,)
    if sizes.has_bias:
        shapes |= {f"{part}.in_proj.bias": (projected,), f"{part}.out_proj.bias": (hidden_size,)}
    return shapes


class Mamba:
    """A layer's mixer: normed x [T, hidden] to what is added to the stream; `weights` are its own."""

    def __init__(self, layer: int, sizes: MambaSizes, eps: float, weights: Weights, kernels: Kernels) -> None:
        self._layer, self._sizes, self._eps, self._kernels = layer, sizes, eps, kernels
        self._in, self._out = weights.matrix("in_proj"), weights.matrix("out_proj")
        self._taps = weights.vector("conv1d.weight").view(sizes.conv_channels, sizes.conv_width).t().contiguous()
        self._conv_bias = weights.vector("conv1d.bias") if sizes.has_conv_bias else 0.0
        self._speed, self._passed = -weights.vector("A_log").exp(), weights.vector("D")[:, None]
        self._step_bias, self._norm = weights.vector("dt_bias"), weights.vector("norm.weight")

    def __call__(self, x: torch.Tensor, kv: KvCache) -> torch.Tensor:
        sizes, shared = self._sizes, self._sizes.groups * self._sizes.state
        (past, memory), (following, becoming) = kv.state(self._layer, *sizes.states)
        projected = self._kernels.linear(x, self._in)
        gate, mixed, step = torch.split(projected, [sizes.inner, sizes.conv_channels, sizes.heads], dim=-1)
        mixed = F.silu(short_conv(mixed, past, following, self._taps) + self._conv_bias)
        values, b, c = torch.split(mixed, [sizes.inner, shared, shared], dim=-1)
        values = values.view(len(x), sizes.heads, sizes.head_dim)
        b, c = (part.view(len(x), sizes.groups, sizes.state) for part in (b, c))
        step = F.softplus(step + self._step_bias)  # [T, heads]
        read = selective_scan(values * step[..., None], b, c, step * self._speed, memory, becoming)
        read = (read + self._passed * values).flatten(1)  # [T, inner]
        return self._kernels.linear(gated_group_norm(read, gate, self._norm, sizes.groups, self._eps), self._out)
