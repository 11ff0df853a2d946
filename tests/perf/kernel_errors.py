"""The relative error of every kernel on random data against float64, by format: a matrix alone and the fused layer of experts."""

from dataclasses import dataclass, replace

import torch

from engine.kernels.native import ExpertTable, Native
from engine.kernels.reference import activate
from engine.kernels.threads import kernel_threads
from engine.kernels.weights import SILU, Format, Weight
from tests.kernels.matrices import EXACT, FOUR_BIT, relative_error

ROWS, COLS = 512, 4096
HIDDEN, WIDE, EXPERTS, TOP_K = 2048, 768, 8, 4  # Qwen3-30B-A3B's experts
_INT8 = (Format.E2M1, Format.INT4, Format.INT4_GPTQ, Format.INT4_AWQ)  # where the processor has integer dot products
LIMITS = {"fp32": 1e-6, "int8": 5e-3, "bf16": 5e-3}  # by how activations are kept


@dataclass(frozen=True)
class KernelError:
    format: str
    kernel: str  # linear or MoE
    tokens: int
    activations: str  # of `LIMITS`
    relative: float

    @property
    def is_good(self) -> bool:
        return self.relative <= LIMITS[self.activations]


def kernel_errors() -> list[KernelError]:
    """Draws from fixed seeds."""
    found = []
    pools = {fast: Native(kernel_threads(), fast=fast) for fast in (False, True)}
    for name, make in (EXACT | FOUR_BIT).items():
        torch.manual_seed(1)
        weight, values = make(ROWS, COLS)
        layer = _layer(name)
        kinds = {False: "int8"} if weight.format in _INT8 else {False: "fp32", True: "bf16"}
        for tokens, fast in ((1, False), (64, False), (1, True), (64, True)):
            is_rounded = weight.format == Format.E4M3 or (
                tokens > 1 and weight.format != Format.F32 and not weight.element_step
            )
            if fast and (True not in kinds or not is_rounded):
                continue
            kind = kinds[fast]
            x = torch.randn(tokens, COLS)
            error = relative_error(pools[fast].linear(x, weight), x.double() @ values.T)
            found.append(KernelError(name, "linear", tokens, kind, error))
            found.append(KernelError(name, "MoE", tokens, kind, _moe_error(pools[fast], layer, tokens)))
    for pool in pools.values():
        pool.close()
    return found


Layer = tuple[ExpertTable, list[tuple[torch.Tensor, ...]]]


def _layer(name: str) -> Layer:
    """Experts whose every product has unit variance, as trained ones nearly have."""
    make = (EXACT | FOUR_BIT)[name]
    table, values = ExpertTable(EXPERTS), []
    for slot in range(EXPERTS):
        parts: list[Weight] = []
        exact: list[torch.Tensor] = []
        for rows, cols in ((WIDE, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE)):
            weight, matrix = make(rows, cols)
            spread = 1.0 if weight.scales is None else float(matrix.std()) * cols**0.5
            parts.append(replace(weight, global_scale=weight.global_scale / spread))
            exact.append(matrix / spread)
        table.set(slot, *parts)
        values.append(tuple(exact))
    return table, values


def _moe_error(pool: Native, layer: Layer, tokens: int) -> float:
    table, values = layer
    # Plain matrices have unit variance, and inputs keep their products near 1.
    x = torch.randn(tokens, HIDDEN) / (HIDDEN**0.5 if table.get(0)[1].scales is None else 1.0)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP_K] for _ in range(tokens)]).int()
    weights = torch.rand(tokens, TOP_K)
    found = pool.moe(table, x, ids, None, weights)
    assert found is not None
    wanted = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    for token, row in enumerate(ids.tolist()):
        for rank, expert in enumerate(row):
            gate, up, down = values[expert]
            seen = x[token].double()
            wanted[token] += weights[token, rank].double() * (down @ activate(SILU, gate @ seen, up @ seen))
    return relative_error(found, wanted)
