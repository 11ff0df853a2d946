"""Random experts of every encoding with what they mean in float64, small enough for an interpreter, on any device."""

from dataclasses import replace

import torch

from engine.kernels.native import ExpertTable
from engine.kernels.weights import Activation, Weight
from tests.kernels.matrices import EXACT, FOUR_BIT
from tests.kernels.test_moe import Layer

EVERY = EXACT | FOUR_BIT
CPU = torch.device("cpu")
_PARTS = ("data", "scales", "zeros", "bias")


def moved(weight: Weight, device: torch.device = CPU) -> Weight:
    """The same in memory of its own, aligned: the matrices of the tests begin at odd addresses."""
    parts = {name: getattr(weight, name) for name in _PARTS}
    return replace(weight, **{name: part.clone().to(device) for name, part in parts.items() if part is not None})


def make_layer(
    name: str,
    activation: Activation = Activation.SILU,
    hidden: int = 128,
    wide: int = 96,
    experts: int = 5,
    device: torch.device = CPU,
    *,
    is_aligned: bool = True,
) -> Layer:
    """With biases, and outputs of about one, where activations bend."""
    table, values = ExpertTable(experts), []
    for slot in range(experts):
        parts: list[Weight] = []
        exact: list[torch.Tensor] = []
        for rows, cols in ((wide, hidden), (wide, hidden), (hidden, wide)):
            weight, matrix = EVERY[name](rows, cols)
            spread = float(matrix.std()) * cols**0.5 if weight.scales is not None else 1.0
            bias = torch.randn(rows) * 0.1
            weight = replace(weight, global_scale=weight.global_scale / spread, bias=bias)
            parts.append(moved(weight, device) if is_aligned else weight)
            exact.append(torch.cat((matrix / spread, bias.double()[:, None]), dim=1))
        table.set(slot, None if activation == Activation.RELU2 else parts[0], parts[1], parts[2])
        values.append(tuple(exact))
    return table, values


def route(tokens: int, top_k: int = 2, experts: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()
    return ids, torch.rand(tokens, top_k)
