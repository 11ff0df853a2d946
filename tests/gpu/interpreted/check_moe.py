"""A layer's experts against float64: encodings, activations, few tokens and many, and rows that another call computes."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import Activation, ExpertMath
from tests.gpu.layers import make_layer, moved, route
from tests.kernels.matrices import mxfp4, relative_error
from tests.kernels.test_moe import exact_moe

HIDDEN, TOP_K, EXPERTS = 128, 2, 5
KINDS = [("bf16", 2), ("int4-32-zeros-f16", 2), ("f16-by-columns-3", 7), ("fp8-128", 7), ("mxfp4", 7), ("nvfp4", 7)]


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("activation", Activation, ids=lambda kind: kind.name)
def test_every_activation(kernels: DeviceKernels, activation: Activation, tokens: int) -> None:
    torch.manual_seed(1)
    layer = make_layer("f32", activation)
    x, (ids, weights) = torch.randn(tokens, HIDDEN) / 8, route(tokens)
    y = kernels.moe(layer[0], x, ids, None, weights, math=ExpertMath(activation, limit=0.7))
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, activation, 1.702, 0.7)) < 2e-6


@pytest.mark.parametrize(("name", "tokens"), KINDS)
def test_every_kind_of_format(kernels: DeviceKernels, name: str, tokens: int) -> None:
    torch.manual_seed(2)
    layer = make_layer(name)
    x, (ids, weights) = torch.randn(tokens, HIDDEN), route(tokens)
    y = kernels.moe(layer[0], x, ids, None, weights)
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, Activation.SILU, 1.702, 7.0)) < 2e-6
    assert kernels.launcher is not None, kernels.notice


@pytest.mark.parametrize("tokens", [1, 6])
def test_at_any_address(kernels: DeviceKernels, tokens: int) -> None:
    torch.manual_seed(3)
    layer = make_layer("fp8-32-e8m0", is_aligned=False)
    x, (ids, weights) = torch.randn(tokens, HIDDEN), route(tokens)
    y = kernels.moe(layer[0], x, ids, None, weights)
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, Activation.SILU, 1.702, 7.0)) < 2e-6


def test_columns_outermost_are_left_to_torch(kernels: DeviceKernels) -> None:
    torch.manual_seed(3)
    layer = make_layer("gptq-32")
    x, (ids, weights) = torch.randn(3, HIDDEN), route(3)
    y = kernels.moe(layer[0], x, ids, None, weights)
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, Activation.SILU, 1.702, 7.0)) < 2e-6


@pytest.mark.parametrize("tokens", [3, 9])
def test_parts_of_a_layer(kernels: DeviceKernels, tokens: int) -> None:
    """Calls for some of the ranks fill only their rows; the last one sums all in routing order."""
    torch.manual_seed(4)
    layer = make_layer("bf16")
    x, (ids, weights) = torch.randn(tokens, HIDDEN), route(tokens)
    first = torch.where(ids % 3 == 0, ids, -1)
    second = torch.where(ids % 3 == 0, -1, ids)
    outputs = torch.full((tokens, TOP_K, HIDDEN), float("nan"))
    assert kernels.moe(layer[0], x, first, outputs) is None
    assert torch.equal(outputs.isnan().any(dim=-1), first < 0)
    kernels.moe(layer[0], x, second, outputs)
    y = kernels.moe(layer[0], x, torch.full_like(ids, -1), outputs, weights)
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, Activation.SILU, 1.702, 7.0)) < 2e-6


def test_one_expert_for_all_and_an_empty_batch(kernels: DeviceKernels) -> None:
    """More tokens of one expert than a tile has, and tiles whose last rows are nobody's."""
    torch.manual_seed(5)
    layer = make_layer("fp8-32-e8m0")
    x, ids = torch.randn(70, HIDDEN), torch.full((70, 1), 3, dtype=torch.int32)
    ids[33:36] = 2
    y = kernels.moe(layer[0], x, ids, None, torch.ones(70, 1))
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, torch.ones(70, 1), Activation.SILU, 1.702, 7.0)) < 2e-6
    nothing = kernels.moe(layer[0], x[:0], ids[:0], None, torch.ones(0, 1))
    assert nothing is not None
    assert nothing.shape == (0, HIDDEN)


@pytest.mark.parametrize("tokens", [1, 6])
def test_interleaved_rows(kernels: DeviceKernels, tokens: int) -> None:
    """Gate and up as the even and odd rows of one matrix, with its biases: gpt-oss."""
    torch.manual_seed(6)
    both, both_values = mxfp4(192, 128)
    down, down_values = mxfp4(128, 96)
    bias = torch.randn(192).bfloat16()
    both, down = replace(moved(both), bias=bias), moved(down)
    table = ExpertTable(2)
    table.set(1, both.take(0, 96, 2), both.take(1, 96, 2), down)
    scale = 0.02 / float(both_values.std())
    x = torch.randn(tokens, 128) * scale
    y = kernels.moe(
        table, x, torch.ones(tokens, 1, dtype=torch.int32), None, torch.ones(tokens, 1), ExpertMath(Activation.GPT_OSS)
    )
    whole = x.double() @ both_values.T + bias.double()
    gate, up = whole[:, 0::2].clamp(max=7.0), whole[:, 1::2].clamp(-7.0, 7.0)
    exact = ((up + 1) * gate * (1.702 * gate).sigmoid()) @ down_values.T
    assert y is not None
    assert relative_error(y, exact) < 2e-6


def test_the_order_of_experts_does_not_show(kernels: DeviceKernels) -> None:
    """Bit by bit, whichever slot an expert is in."""
    torch.manual_seed(7)
    table, _ = make_layer("bf16")
    x, (ids, weights) = torch.randn(2, HIDDEN), route(2)
    moved = ExpertTable(EXPERTS)
    for slot in range(EXPERTS):
        moved.set(EXPERTS - 1 - slot, *table.get(slot))
    one, other = kernels.moe(table, x, ids, None, weights), kernels.moe(moved, x, EXPERTS - 1 - ids, None, weights)
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)
