"""The fused layer against float64 and against itself, computed in pieces."""

from collections.abc import Callable

import pytest
import torch

from engine.kernels.native import ExpertTable, Native
from engine.kernels.reference import Reference, activate
from engine.kernels.weights import Activation, ExpertMath, Weight, plain
from tests.kernels.matrices import EXACT, FOUR_BIT, relative_error

Kernels = Callable[..., Native]
EXPERTS, TOP_K, HIDDEN, WIDE = 12, 3, 256, 160
Layer = tuple[ExpertTable, list[tuple[torch.Tensor, ...]]]


def make_layer(name: str, activation: Activation = Activation.SILU) -> Layer:
    make = (EXACT | FOUR_BIT)[name]
    table, values = ExpertTable(EXPERTS), []
    for slot in range(EXPERTS):
        parts: list[Weight] = []
        exact: list[torch.Tensor] = []
        for rows, cols in ((WIDE, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE)):
            weight, matrix = make(rows, cols)
            spread = float(matrix.std()) * cols**0.5  # outputs of about one, where activations bend
            bias = torch.randn(rows) * 0.1
            parts.append(
                _with(weight, global_scale=weight.global_scale / spread if weight.scales is not None else 1.0, bias=bias)
            )
            exact.append(torch.cat((matrix / (spread if weight.scales is not None else 1.0), bias.double()[:, None]), dim=1))
        gate = None if activation == Activation.RELU2 else parts[0]
        table.set(slot, gate, parts[1], parts[2])
        values.append(tuple(exact))
    return table, values


def _with(weight: Weight, **changes: object) -> Weight:
    return Weight(**{name: getattr(weight, name) for name in Weight.__slots__} | changes)


def route(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).int()
    return ids, torch.rand(tokens, TOP_K)


def exact_moe(
    layer: Layer, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, activation: Activation, alpha: float, limit: float
) -> torch.Tensor:
    y = torch.zeros(*x.shape, dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    for token, row in enumerate(ids.tolist()):
        for rank, expert in enumerate(row):
            gate, up, down = layer[1][expert]
            seen = torch.cat((x[token].double(), one))
            mixed = activate(ExpertMath(activation, alpha, limit), gate @ seen, up @ seen)
            y[token] += weights[token, rank].double() * (down @ torch.cat((mixed, one)))
    return y


@pytest.mark.parametrize("activation", Activation, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tokens", [1, 2, 9, 40])
def test_every_activation(activation: Activation, tokens: int, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    layer = make_layer("f32", activation)
    x, (ids, weights) = torch.randn(tokens, HIDDEN) / 8, route(tokens)
    y = kernels(isa).moe(layer[0], x, ids, None, weights, math=ExpertMath(activation, limit=0.7))
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, weights, activation, 1.702, 0.7)) < 2e-6


@pytest.mark.parametrize("name", ["bf16", "bf16-by-columns-2", "fp8-32-e8m0", "mxfp4", "nvfp4", "int4-32-zeros-f16"])
@pytest.mark.parametrize("tokens", [1, 40])
def test_every_kind_of_format(name: str, tokens: int, isa: str, kernels: Kernels) -> None:
    """Three products in a row, each with its own 5e-3 where activations are int8."""
    torch.manual_seed(2)
    layer = make_layer(name)
    x, (ids, weights) = torch.randn(tokens, HIDDEN), route(tokens)
    y = kernels(isa).moe(layer[0], x, ids, None, weights)
    assert y is not None
    limit = 1.5e-2 if name in FOUR_BIT else 2e-6
    assert relative_error(y, exact_moe(layer, x, ids, weights, Activation.SILU, 1, 1)) < limit


@pytest.mark.parametrize("name", ["bf16", "mxfp4"])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_in_pieces_it_is_the_same_to_the_bit(name: str, fast: bool, tokens: int, isa: str, kernels: Kernels) -> None:
    """Hits first, then each miss as it lands, on whatever number of threads."""
    torch.manual_seed(3)
    table, _ = make_layer(name)
    x, (ids, weights) = torch.randn(tokens, HIDDEN), route(tokens)
    whole = kernels(isa, 1, fast).moe(table, x, ids, None, weights)
    outputs = torch.full((tokens, TOP_K, HIDDEN), float("nan"))
    landing = [[0, 5, 7, 2], [11], [1, 3], [4], [6], [10, 9, 8]]
    for index, experts in enumerate(landing):
        some = torch.where(torch.isin(ids, torch.tensor(experts, dtype=torch.int32)), ids, -1)
        pool = kernels(isa, 1 + index % 3, fast)
        y = pool.moe(table, x, some, outputs, weights if index == len(landing) - 1 else None)
    assert whole is not None
    assert y is not None
    assert torch.equal(whole, y)


def test_one_expert_for_all(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(4)
    layer = make_layer("mxfp4")
    x, ids = torch.randn(300, HIDDEN), torch.full((300, 1), 7, dtype=torch.int32)
    y = kernels(isa).moe(layer[0], x, ids, None, torch.ones(300, 1))
    assert y is not None
    assert relative_error(y, exact_moe(layer, x, ids, torch.ones(300, 1), Activation.SILU, 1, 1)) < 1.5e-2


def test_the_reference_agrees(kernels: Kernels) -> None:
    torch.manual_seed(5)
    table, _ = make_layer("f32")
    x, (ids, weights) = torch.randn(6, HIDDEN), route(6)
    ours, theirs = kernels().moe(table, x, ids, None, weights), Reference().moe(table, x, ids, None, weights)
    assert ours is not None
    assert theirs is not None
    assert relative_error(ours, theirs.double()) < 2e-6
    parts = (plain(torch.randn(64, 32)), plain(torch.randn(64, 32)), plain(torch.randn(32, 64)))
    ours, theirs = (one.swiglu(*parts)(x[:, :32]) for one in (kernels(), Reference()))
    assert relative_error(ours, theirs.double()) < 2e-6


@pytest.mark.parametrize("dtypes", [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_gate_and_up_of_two_types(dtypes: tuple[torch.dtype, torch.dtype], kernels: Kernels) -> None:
    """The library wants both alike: a mixed release is computed all the same."""
    torch.manual_seed(6)
    gate, up = (torch.randn(64, 32).to(dtype) for dtype in dtypes)
    parts, x = (plain(gate), plain(up), plain(torch.randn(32, 64))), torch.randn(6, 32)
    ours, theirs = (one.swiglu(*parts)(x) for one in (kernels(), Reference()))
    assert relative_error(ours, theirs.double()) < 2e-6
