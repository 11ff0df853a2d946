"""One token through the gated delta rule with its norms and products, on every tier, against its definition in float64."""

import ctypes
from collections.abc import Callable
from ctypes import pointer

import pytest
import torch
import torch.nn.functional as F

from engine.kernels.abi import DeltaBlockCall, DeltaCall, descriptor
from engine.kernels.delta import ComposedDelta, DeltaBlockSpec, DeltaSpec, States
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from engine.kernels.weights import plain, plain_tensor

Kernels = Callable[..., Native]
NULL, SHAPE, OPTION = 1, 3, 8  # of stoker_status
HIDDEN = 48


def drawn(key_heads: int, value_heads: int, key_dim: int, value_dim: int, width: int, *, is_grouped: bool) -> DeltaBlockSpec:
    values = value_heads * value_dim
    channels = 2 * key_heads * key_dim + values
    rule = DeltaSpec(
        key_heads, value_heads, key_dim, value_dim, torch.randn(width, channels), -torch.rand(value_heads) * 2,
        torch.randn(value_heads), torch.randn(value_dim), 1e-6,
    )  # fmt: skip
    rows = (channels + values, 2 * value_heads) if is_grouped else (channels, values, value_heads, value_heads)
    inputs = tuple(plain(torch.randn(count, HIDDEN)) for count in rows)
    return DeltaBlockSpec(rule, inputs, plain(torch.randn(HIDDEN, values) / 8), torch.randn(HIDDEN), torch.randn(HIDDEN))


def states(spec: DeltaBlockSpec) -> States:
    rule = spec.rule
    past = torch.randn(len(rule.taps) - 1, rule.taps.shape[1])
    return past, torch.randn(rule.value_heads, rule.key_dim, rule.value_dim)


def by_definition(spec: DeltaBlockSpec, x: torch.Tensor, now: States) -> tuple[torch.Tensor, ...]:
    """Stream, its norm, the inputs that stay and the memories after one token x [H]."""
    rule, per_key = spec.rule, spec.rule.value_heads // spec.rule.key_heads

    def norm(values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return values / (values.square().mean(-1, keepdim=True) + rule.eps).sqrt() * weight.double()

    normed = norm(x.double(), spec.input_norm)
    parts = [plain_tensor(weight).double() @ normed for weight in spec.inputs]
    if len(parts) == 2:
        width = per_key * rule.value_dim
        split = [rule.key_dim, rule.key_dim, width, width]
        q, k, v, gate = torch.split(parts[0].view(rule.key_heads, -1), split, dim=1)
        rate, decay = (part.flatten() for part in torch.split(parts[1].view(rule.key_heads, -1), per_key, dim=1))
        parts = [torch.cat((q.flatten(), k.flatten(), v.flatten())), gate.flatten(), rate, decay]
    joined = torch.cat((now[0].double(), parts[0][None]))
    mixed = F.silu((joined * rule.taps.double()).sum(0))
    q, k, v = torch.split(mixed, [rule.key_heads * rule.key_dim] * 2 + [rule.value_heads * rule.value_dim])
    q, k = (part.view(rule.key_heads, -1).repeat_interleave(per_key, 0) for part in (q, k))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    q, v = q / rule.key_dim**0.5, v.view(rule.value_heads, -1)
    state = now[1].double() * (rule.speed.double() * F.softplus(parts[3] + rule.bias)).exp()[:, None, None]
    error = (v - torch.einsum("hkv,hk->hv", state, k)) * parts[2].sigmoid()[:, None]
    state = state + torch.einsum("hk,hv->hkv", k, error)
    read = norm(torch.einsum("hkv,hk->hv", state, q), rule.norm) * F.silu(parts[1].view(rule.value_heads, -1))
    stream = x.double() + plain_tensor(spec.out).double() @ read.flatten()
    return stream, norm(stream, spec.post_norm), joined[1:], state


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 128, 128, 4), (1, 1, 16, 80, 2), (3, 3, 5, 7, 3), (2, 6, 33, 65, 4)])
def test_against_float64(shape: tuple[int, int, int, int, int], is_grouped: bool, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    spec = drawn(*shape, is_grouped=is_grouped)
    x, now = torch.randn(1, HIDDEN), states(spec)
    expected = by_definition(spec, x[0], now)
    following = tuple(torch.full_like(part, torch.nan) for part in now)
    normed = kernels(isa).delta_block(spec)(x, now, following)
    for ours, theirs in zip((x[0], normed[0], *following), expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("is_grouped", [False, True])
def test_one_after_another_is_all_at_once(is_grouped: bool, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(2)
    spec = drawn(2, 4, 16, 24, 4, is_grouped=is_grouped)
    x, now = torch.randn(9, HIDDEN), states(spec)
    rows, at_once = x.clone(), tuple(torch.empty_like(part) for part in now)
    expected = ComposedDelta(Reference(), spec)(x, now, at_once)
    block, normed = kernels(isa).delta_block(spec), []
    for t in range(9):
        following = tuple(torch.empty_like(part) for part in now)
        normed.append(block(rows[t : t + 1], now, following))
        now = following
    torch.testing.assert_close(torch.cat(normed), expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(rows, x, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(now[1], at_once[1], atol=1e-3, rtol=1e-3)


RULE = ("past", "taps", "speed", "bias", "norm", "memory", "following", "kept")


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        *((name, None, NULL) for name in (*RULE, "x", "input_norm", "post_norm", "normed", "out")),
        *((name, value, SHAPE) for name in ("key_heads", "value_heads", "key_dim", "value_dim", "hidden")
          for value in (0, -1, 5, 1 << 40)),
        ("width", 1, SHAPE), ("width", 65, SHAPE), ("eps", -1.0, OPTION), ("flags", 2, OPTION),
    ],
)  # fmt: skip
def test_what_is_refused(field: str, value: object, status: int, kernels: Kernels) -> None:
    spec, pool = drawn(2, 4, 16, 16, 4, is_grouped=True), kernels()
    x, normed, now = torch.randn(1, HIDDEN), torch.empty(1, HIDDEN), states(spec)
    following, rule = tuple(torch.empty_like(part) for part in now), spec.rule
    call = DeltaBlockCall(
        rule=DeltaCall(
            key_heads=2, value_heads=4, key_dim=16, value_dim=16, width=4, taps=rule.taps.data_ptr(),
            speed=rule.speed.data_ptr(), bias=rule.bias.data_ptr(), norm=rule.norm.data_ptr(), eps=1e-6,
            past=now[0].data_ptr(), memory=now[1].data_ptr(), following=following[0].data_ptr(), kept=following[1].data_ptr(),
        ),
        hidden=HIDDEN, x=x.data_ptr(), input_norm=spec.input_norm.data_ptr(), post_norm=spec.post_norm.data_ptr(),
        out=pointer(descriptor(spec.out)), normed=normed.data_ptr(),
    )  # fmt: skip
    for index, weight in enumerate(spec.inputs):
        call.inputs[index] = pointer(descriptor(weight))
    assert pool.lib.stoker_delta_block(pool.pool, ctypes.byref(call)) == 0
    setattr(
        call.rule if field in (*RULE, "key_heads", "value_heads", "key_dim", "value_dim", "width", "eps") else call,
        field,
        value,
    )
    assert pool.lib.stoker_delta_block(pool.pool, ctypes.byref(call)) == status
    assert pool.lib.stoker_delta_block(pool.pool, None) == NULL
