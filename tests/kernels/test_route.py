"""Which experts a token goes to, on every tier, against a softmax in float64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.kernels.native import Native
from engine.kernels.weights import plain
from tests.kernels.matrices import EXACT, FOUR_BIT, relative_error

Kernels = Callable[..., Native]


@pytest.mark.parametrize("name", ["f32", "bf16", "f16", "fp8-128"])
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(("experts", "top_k"), [(8, 1), (8, 8), (33, 4), (128, 8)])
def test_against_float64(name: str, renormalise: bool, experts: int, top_k: int, isa: str, kernels: Kernels) -> None:
    torch.manual_seed(1)
    weight, values = EXACT[name](experts, 96)
    bias = torch.randn(experts)
    scale = 1.0 if weight.scales is None else 1 / float(values.std())
    weight = replace(weight, bias=bias, global_scale=weight.global_scale * scale)
    route = kernels(isa).router(weight, top_k, renormalise=renormalise)
    for tokens in (1, 3, 17, 70):
        x = torch.randn(tokens, 96) / 8
        ids, weights = route(x)
        chances = (x.double() @ (values * scale).T + bias).softmax(1)
        wanted, order = chances.topk(top_k, dim=1)
        if renormalise:
            wanted = wanted / wanted.sum(1, keepdim=True)
        assert ids.dtype == torch.int32
        assert torch.equal(ids.long(), order), "no two chances are this near"
        assert relative_error(weights, wanted) < 2e-6


def test_of_equals_the_first(isa: str, kernels: Kernels) -> None:
    route = kernels(isa).router(plain(torch.ones(6, 32)), 3, renormalise=True)
    ids, weights = route(torch.randn(2, 32))
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert torch.equal(weights, torch.full((2, 3), 1 / 3))


def test_huge_logits_and_what_is_no_number(isa: str, kernels: Kernels) -> None:
    router = torch.zeros(5, 16)
    router[:, 0] = torch.tensor([1.0, 3.0, float("nan"), 2.0, -1.0])
    for renormalise in (False, True):
        ids, weights = kernels(isa).router(plain(router), 2, renormalise=renormalise)(torch.full((1, 16), 1e4))
        assert ids.tolist() == [[1, 3]], "a NaN is nobody's choice"
        if renormalise:
            assert weights.tolist() == [[1.0, 0.0]]


def test_a_four_bit_router(isa: str, kernels: Kernels) -> None:
    torch.manual_seed(2)
    weight, values = FOUR_BIT["mxfp4"](32, 256)
    spread = float(values.std()) * 16
    route = kernels(isa).router(replace(weight, global_scale=1 / spread), 4, renormalise=False)
    x = torch.randn(9, 256)
    ids, weights = route(x)
    chances = (x.double() @ (values / spread).T).softmax(1)
    assert relative_error(weights, chances.gather(1, ids.long())) < 3e-2
