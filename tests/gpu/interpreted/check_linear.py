"""Products with one matrix against float64, of every encoding, at any address."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.gpu.kernels import DeviceKernels
from tests.gpu.layers import EVERY, moved
from tests.kernels.matrices import EXACT, relative_error


@pytest.mark.parametrize(("tokens", "is_aligned"), [(1, True), (1, False), (6, True)])
@pytest.mark.parametrize("name", EVERY)
def test_one_matrix(kernels: DeviceKernels, name: str, is_aligned: bool, tokens: int) -> None:
    torch.manual_seed(1)
    weight, values = EVERY[name](24, 640 if name != "fp8-128" else 600)
    bias = torch.randn(48)[::2]
    x = torch.randn(tokens, weight.cols)
    y = kernels.linear(x, replace(moved(weight) if is_aligned else weight, bias=bias))
    assert relative_error(y, x.double() @ values.T + bias) < 1e-6
    assert kernels.launcher is not None, kernels.notice


@pytest.mark.parametrize("name", ["bf16-by-columns", "fp8-128", "mxfp4"])
def test_batches_in_half_precision(kernels: DeviceKernels, name: str) -> None:
    """As on cards: operands of 16 bits, sums of 32. 3e-4 is half a unit in the last place, twice."""
    torch.manual_seed(2)
    kernels.operands = kernels.launcher.operands = torch.float16
    weight, values = EVERY[name](40, 256)
    x = torch.randn(6, 256)
    assert relative_error(kernels.linear(x, moved(weight)), x.double() @ values.T) < 6e-4


def test_more_rows_than_a_tile_and_one_row(kernels: DeviceKernels) -> None:
    torch.manual_seed(3)
    for rows in (1, 67):
        weight, values = EXACT["bf16-by-columns"](rows, 96)
        for tokens in (1, 20):
            x = torch.randn(tokens, 96)
            assert relative_error(kernels.linear(x, moved(weight)), x.double() @ values.T) < 5e-7
