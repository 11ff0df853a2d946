"""Matrix products of every format and tier against float64."""

from collections.abc import Callable

import pytest
import torch

from engine.kernels.native import Native
from engine.kernels.reference import Reference, dequantise
from engine.kernels.weights import Format, ScaleType, Weight, as_bytes, plain
from tests.kernels.matrices import EXACT, FOUR_BIT, mxfp4, relative_error

Kernels = Callable[..., Native]
TOKENS = (1, 2, 3, 4, 5, 16, 70)
FP32, FAST, INT8 = 1e-6, 5e-3, 5e-3
# The average over a small product's few sums strays further from the expectation that these limits are about.
FEW = 3.0


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("shape", [(5, 1), (37, 100), (64, 256), (130, 1024)], ids=str)
def test_wide_formats_are_exact(name: str, shape: tuple[int, int], isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    weight, values = EXACT[name](*shape)
    pool = kernels(isa)
    for tokens in TOKENS:
        x = torch.randn(tokens, shape[1])
        assert relative_error(pool.linear(x, weight), x.double() @ values.T) < FP32, tokens


@pytest.mark.parametrize("name", [name for name in EXACT if name != "f32"])
def test_rounding_activations_to_bf16_keeps_5e_3(name: str, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(2)
    weight, values = EXACT[name](130, 1000)
    pool = kernels(isa, fast=True)
    for tokens in TOKENS:
        x = torch.randn(tokens, 1000)
        assert relative_error(pool.linear(x, weight), x.double() @ values.T) < FAST, tokens


@pytest.mark.parametrize("name", FOUR_BIT)
@pytest.mark.parametrize("cols", [128, 384, 4096])
def test_four_bit_formats_keep_5e_3(name: str, cols: int, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(3)
    rows = 256 if cols == 4096 else 72
    weight, values = FOUR_BIT[name](rows, cols)
    pool = kernels(isa)
    for tokens in TOKENS:
        x = torch.randn(tokens, cols)
        limit = INT8 * (FEW if rows * tokens < 4096 else 1.1 if cols < 4096 else 1.0)
        assert relative_error(pool.linear(x, weight), x.double() @ values.T) < limit, tokens


@pytest.mark.parametrize("rows", [1, 15, 17])
@pytest.mark.parametrize("cols", [32, 96, 160])
def test_columns_that_fill_no_block(rows: int, cols: int, isa: str, kernels: Kernels) -> None:
    """x holds whole numbers with a largest of 127 in every group, which int8 represents exactly."""
    torch.manual_seed(4)
    for name in ("mxfp4", "nvfp4", "int4-32", "int4-32-zeros-f16"):
        weight, values = FOUR_BIT[name](rows, cols)
        for tokens in (1, 2, 3, 4, 7, 65):
            x = torch.randint(-127, 128, (tokens, cols)).float()
            x[:, ::16] = 127
            error = (kernels(isa).linear(x, weight).double() - x.double() @ values.T).abs()
            assert (error <= FP32 * (x.double().abs() @ values.abs().T)).all(), (name, tokens)


def test_threads_do_not_change_a_bit(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(5)
    pools = [kernels(isa, threads) for threads in (1, 2, 3)]
    for make in (*EXACT.values(), *FOUR_BIT.values()):
        weight, _ = make(264, 256)
        for tokens in (1, 3, 33):
            x = torch.randn(tokens, 256)
            first, *others = (pool.linear(x, weight) for pool in pools)
            assert all(torch.equal(first, other) for other in others)


def test_a_token_does_not_depend_on_its_neighbours(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(6)
    pool = kernels(isa)
    for make in (*EXACT.values(), *FOUR_BIT.values()):
        weight, _ = make(72, 256)
        x = torch.randn(40, 256)
        assert torch.equal(pool.linear(x, weight)[7:29], pool.linear(x[7:29], weight))


def test_bias_and_rows_taken_from_a_fused_matrix(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(7)
    weight, values = mxfp4(128, 256)
    bias = torch.randn(128).bfloat16()
    fused = Weight(**{name: getattr(weight, name) for name in Weight.__slots__} | {"bias": bias})
    x = torch.randn(5, 256)
    whole = kernels(isa).linear(x, fused)
    assert relative_error(whole, x.double() @ values.T + bias.double()) < 3 * INT8
    for first, step, count in ((0, 2, 64), (1, 2, 64), (64, 1, 64)):
        assert torch.equal(kernels(isa).linear(x, fused.take(first, count, step)), whole[:, first::step][:, :count])


def test_not_a_number_is_not_hidden(isa: str, kernels: Kernels) -> None:
    for make in (*EXACT.values(), *FOUR_BIT.values()):
        weight, _ = make(40, 256)
        for tokens in (1, 5):
            for poison in (float("nan"), float("inf")):
                x = torch.zeros(tokens, 256)
                x[0, 200] = poison
                y = kernels(isa).linear(x, weight)
                assert not y[0].isfinite().all()
                assert y[1:].isfinite().all()


def test_zero_activations_give_zero(isa: str, kernels: Kernels) -> None:
    for make in (*EXACT.values(), *FOUR_BIT.values()):
        assert not kernels(isa).linear(torch.zeros(3, 256), make(40, 256)[0]).any()


def test_plain_tensors_are_taken_as_they_are(kernels: Kernels) -> None:
    x = torch.randn(3, 64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        weight = torch.randn(24, 64).to(dtype)
        assert torch.equal(kernels().linear(x, weight), kernels().linear(x, plain(weight)))
    assert kernels().linear(x[:0], weight).shape == (0, 24)


@pytest.mark.parametrize("name", [*EXACT, *FOUR_BIT])
def test_the_reference_dequantises_as_published(name: str) -> None:
    torch.manual_seed(8)
    weight, values = (EXACT | FOUR_BIT)[name](40, 256)
    assert relative_error(dequantise(weight), values) < 1e-7
    x = torch.randn(4, 256)
    assert relative_error(Reference().linear(x, weight), x.double() @ values.T) < FP32


def test_mxfp4_as_transformers_reads_it() -> None:
    mxfp4_of_transformers = pytest.importorskip("transformers.integrations.mxfp4")
    torch.manual_seed(9)
    blocks = torch.randint(0, 256, (2, 24, 3, 16), dtype=torch.uint8)
    scales = torch.randint(110, 135, (2, 24, 3), dtype=torch.uint8)
    theirs = mxfp4_of_transformers.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [E, in, out]
    for expert in range(2):
        ours = Weight(Format.E2M1, 24, 96, as_bytes(blocks[expert]), 48, ScaleType.E8M0, as_bytes(scales[expert]), 3, 1, 1, 32)
        assert torch.equal(dequantise(ours), theirs[expert].t())
