"""Attention of every tier against a plain softmax in float64."""

from collections.abc import Callable

import pytest
import torch

from engine.config import KvType
from engine.kernels.kept import DTYPES, dim_of, first, keep, numbers, width
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from tests.kernels.matrices import relative_error

Kernels = Callable[..., Native]


def kept(x: torch.Tensor, kv_type: KvType) -> torch.Tensor:
    """Rows of x [H, S, D] as a cache holds them."""
    rows = torch.empty(*x.shape[:2], width(DTYPES[kv_type], x.shape[2]), dtype=DTYPES[kv_type])
    keep(rows, 0, x.transpose(0, 1))
    return rows


@pytest.mark.parametrize("dim", [1, 31, 32, 33, 64, 100, 576])
def test_q8_is_within_half_a_step_of_each_block(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 9, dim) * torch.exp2(torch.randint(-20, 20, (2, 9, 1)).float())
    x[0, 3] = 0
    rows = kept(x, KvType.Q8)
    assert rows.nbytes == 18 * KvType.Q8.row_bytes(dim)
    assert dim_of(rows) == dim
    found = numbers(rows)
    for begin in range(0, dim, 32):
        block, ours = x[..., begin : begin + 32], found[..., begin : begin + 32]
        step = block.abs().amax(-1, keepdim=True) / 127 * (1 + 2**-7)  # the scale is a bf16, rounded up
        assert bool(((ours - block).abs() <= step * 0.5001).all())
    for count in (1, min(dim, 40)):
        assert torch.equal(numbers(first(rows, count)), found[..., :count]), "a row's first numbers are its first bytes"


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_number_that_is_none_shows(broken: float) -> None:
    x = torch.ones(1, 1, 64)
    x[0, 0, 5] = broken
    assert not numbers(kept(x, KvType.Q8))[..., :32].isfinite().any()


@pytest.mark.parametrize("kv_type", KvType)
@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (1, 63), (1, 700), (5, 5), (40, 200), (17, 64)])
@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (6, 1)], ids=str)
def test_causal(kv_type: KvType, tokens: int, length: int, heads: tuple[int, int], isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    for dim, value_dim in ((64, 64), (20, 36)):
        q = torch.randn(tokens, heads[0], dim)
        keys, values = (
            kept(torch.randn(heads[1], length, dim), kv_type),
            kept(torch.randn(heads[1], length, value_dim), kv_type),
        )
        exact = Reference().attention(q.double(), keys, values)
        assert relative_error(kernels(isa).attention(q, keys, values), exact) < 1e-6


def test_window_sinks_and_softcap(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(2)
    q, keys, values = torch.randn(30, 8, 64), torch.randn(2, 150, 64), torch.randn(2, 150, 64)
    sinks = torch.randn(8) * 3
    for window in (None, 1, 7, 100):
        for sink in (None, sinks):
            for cap in (0.0, 5.0):
                options = {"window": window, "sinks": sink, "softcap": cap, "scale": 0.3}
                exact = Reference().attention(q.double(), keys, values, **options)  # type: ignore[arg-type]
                y = kernels(isa).attention(q, keys, values, **options)  # type: ignore[arg-type]
                assert relative_error(y, exact) < 2e-6, options


def test_a_cache_with_room_and_huge_logits(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(3)
    cache = torch.randn(2, 2, 512, 64)
    keys, values = cache[0, :, :300], cache[1, :, :300]
    q = torch.randn(3, 4, 64) * 200
    exact = Reference().attention(q.double(), keys, values)
    assert relative_error(kernels(isa).attention(q, keys, values), exact) < 1e-5
    assert torch.equal(kernels(isa, 1).attention(q, keys, values), kernels(isa, 3).attention(q, keys, values))
