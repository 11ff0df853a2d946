"""The gated delta rule over convolved queries, keys and values, with its norms and products: what the kernels make one call of,
and the same in torch for any number of tokens.

Source: Yang et al. 2024, Gated Delta Networks.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

from engine.kernels.weights import Weight

_CHUNK = 64  # tokens that are solved at once; more make larger triangles, fewer more steps


@dataclass(frozen=True, eq=False)
class DeltaSpec:
    """A layer's constants, fp32; C = 2 * key_heads * key_dim + value_heads * value_dim are queries, keys and values."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: torch.Tensor  # [K, C], the newest last
    speed: torch.Tensor  # [Hv], negative
    bias: torch.Tensor  # [Hv]
    norm: torch.Tensor  # [Dv]
    eps: float


@dataclass(frozen=True, eq=False)
class DeltaBlockSpec:
    """The rule between two norms [H]: x += out(rule of the inputs of input_norm(x)).

    `inputs` are four matrices, for the convolution's input [C], the output's gate [Hv * Dv], and logits of rate and decay [Hv];
    or two with rows by key head, of queries, keys, values and gate, and of rate and decay.
    """

    rule: DeltaSpec
    inputs: tuple[Weight, ...]
    out: Weight
    input_norm: torch.Tensor
    post_norm: torch.Tensor


@dataclass(frozen=True, eq=False)
class DeltaInput:
    """What the inputs give: mixed [T, C], gate [T, Hv * Dv], rate and decay [T, Hv]."""

    mixed: torch.Tensor
    gate: torch.Tensor
    rate: torch.Tensor
    decay: torch.Tensor


States = tuple[torch.Tensor, ...]  # the last inputs [K - 1, C] and the memories [Hv, Dk, Dv]


class DeltaBlock(Protocol):
    """Not thread-safe."""

    def __call__(self, x: torch.Tensor, now: States, following: States) -> torch.Tensor:
        """Adds to the stream x fp32 [T, H] in place and returns its post_norm [T, H]; fills `following` from `now`."""


class Linear(Protocol):
    """Of `Kernels`."""

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor: ...


class ComposedDelta:
    """A `DeltaBlock` of the kernels' products and torch's operations, for any number of tokens on any device."""

    def __init__(self, kernels: Linear, spec: DeltaBlockSpec) -> None:
        self._kernels, self._spec = kernels, spec

    def __call__(self, x: torch.Tensor, now: States, following: States) -> torch.Tensor:
        spec, eps, width = self._spec, self._spec.rule.eps, (x.shape[1],)
        given = self._given(F.rms_norm(x, width, spec.input_norm, eps))
        x += self._kernels.linear(apply_rule(spec.rule, given, now, following), spec.out)
        return F.rms_norm(x, width, spec.post_norm, eps)

    def _given(self, x: torch.Tensor) -> DeltaInput:
        rule, parts = self._spec.rule, [self._kernels.linear(x, weight) for weight in self._spec.inputs]
        if len(parts) == 4:
            return DeltaInput(*parts)
        values = rule.value_heads // rule.key_heads * rule.value_dim
        by_head = parts[0].view(len(x), rule.key_heads, -1)
        q, k, v, gate = torch.split(by_head, [rule.key_dim, rule.key_dim, values, values], dim=-1)  # [T, Hk, ...]
        rate, decay = parts[1].view(len(x), rule.key_heads, -1).chunk(2, dim=-1)
        mixed = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), dim=-1)  # [T, C]
        return DeltaInput(mixed, gate.flatten(1), rate.flatten(1), decay.flatten(1))


def apply_rule(spec: DeltaSpec, given: DeltaInput, now: States, following: States) -> torch.Tensor:
    """To [T, Hv * Dv]; fills `following`."""
    count = len(given.mixed)
    mixed = F.silu(short_conv(given.mixed, now[0], following[0], spec.taps))
    keys_width = spec.key_heads * spec.key_dim
    q, k, v = torch.split(mixed, [keys_width, keys_width, spec.value_heads * spec.value_dim], dim=-1)
    q, k = (_unit(part.view(count, spec.key_heads, -1)) for part in (q, k))
    shared_by = spec.value_heads // spec.key_heads
    q, k = (part.repeat_interleave(shared_by, dim=1).transpose(0, 1) for part in (q, k))  # [Hv, T, Dk]
    read = gated_delta(
        q * spec.key_dim**-0.5, k, v.view(count, spec.value_heads, -1).transpose(0, 1),
        (spec.speed * F.softplus(given.decay + spec.bias)).t(), given.rate.sigmoid().t(), now[1], following[1],
    ).transpose(0, 1)  # [T, Hv, Dv]  # fmt: skip
    normed = F.rms_norm(read, (spec.value_dim,), spec.norm, spec.eps)
    return normed.flatten(1) * F.silu(given.gate)


def short_conv(x: torch.Tensor, past: torch.Tensor, following: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Each channel's weighted sum over its last K values: x [T, C] to [T, C].

    `past` [K - 1, C] are the inputs before x, `following` gets those before what comes next; taps [K, C], the newest last.
    """
    joined, count = torch.cat((past, x)), len(x)
    following.copy_(joined[count:])
    y = joined[:count] * taps[0]
    for index, tap in enumerate(taps[1:], 1):
        y += joined[index : index + count] * tap
    return y


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
    memory: torch.Tensor,
    following: torch.Tensor,
) -> torch.Tensor:
    """What each token reads from a memory S [Hv, Dk, Dv] that it has just changed: [Hv, T, Dv].

    Token by token S = a S + k d^T with d = rate (v - (a S)^T k) and a = exp(decay), and q^T S is read. q, k [Hv, T, Dk],
    v [Hv, T, Dv], decay and rate [Hv, T]. Within a chunk, with A the running product of a, the d solve a triangular system:
    d_t = rate_t (v_t - A_t S^T k_t - sum over j < t of A_t / A_j (k_t k_j) d_j).
    """
    read = []
    for start in range(0, q.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        queries, keys = q[:, part], k[:, part]  # [Hv, C, Dk]
        fallen = decay[:, part].cumsum(dim=1)  # [Hv, C], logarithm of A
        between = (fallen[:, :, None] - fallen[:, None, :]).tril().exp().tril()  # [Hv, C, C], A_t / A_j
        scaled, own_rate = fallen.exp()[..., None], rate[:, part, None]
        triangle = (keys @ keys.mT * between * own_rate).tril(-1)
        wanted = own_rate * (v[:, part] - scaled * (keys @ memory))
        change = torch.linalg.solve_triangular(triangle, wanted, upper=False, unitriangular=True)  # [Hv, C, Dv]
        read.append(scaled * (queries @ memory) + (queries @ keys.mT * between) @ change)
        left = (fallen[:, -1:] - fallen).exp()[..., None]  # [Hv, C, 1]
        torch.mul(memory, scaled[:, -1:], out=following)
        following.baddbmm_((keys * left).mT, change)
        memory = following
    return torch.cat(read, dim=1)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Each vector x [..., D] divided by its length."""
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()
