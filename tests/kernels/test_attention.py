"""Attention of every tier against a plain softmax in float64."""

from collections.abc import Callable

import pytest
import torch

from engine.kernels.native import Native
from engine.kernels.reference import Reference
from tests.kernels.matrices import relative_error

Kernels = Callable[..., Native]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("tokens", "length"), [(1, 1), (1, 63), (1, 700), (5, 5), (40, 200), (17, 64)])
@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (6, 1)], ids=str)
def test_causal(dtype: torch.dtype, tokens: int, length: int, heads: tuple[int, int], isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    for dim, value_dim in ((64, 64), (20, 36)):
        q = torch.randn(tokens, heads[0], dim)
        keys, values = torch.randn(heads[1], length, dim).to(dtype), torch.randn(heads[1], length, value_dim).to(dtype)
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
