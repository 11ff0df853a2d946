"""From the bytes of an expert to the matrices that the kernels take, in place. Knows formats through `engine.quant` alone."""

from dataclasses import dataclass

import torch

from engine.checkpoint.experts import ExpertMap, ExpertNames
from engine.errors import EngineError
from engine.kernels.weights import PLAIN, Weight
from engine.quant.layout import Layout
from engine.quant.registry import recognise, require_one_format
from engine.tiers.arena import part_start

Matrices = tuple[Weight, Weight, Weight]  # gate, up, down


@dataclass(frozen=True)
class ExpertFormat:
    """How every expert of a checkpoint is encoded, from its headers. `layouts` by matrix name."""

    name: str
    names: ExpertNames
    layouts: dict[str, Layout]

    @property
    def label(self) -> str:
        """As people name it: "MXFP4", "BF16"."""
        codes = next(iter(self.layouts.values())).format
        return codes.name if codes in PLAIN.values() else self.name

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Gate, up and down as [out, in]."""
        if (separate := self.names.separate) and separate[0] in self.layouts:
            return tuple((self.layouts[matrix].rows, self.layouts[matrix].cols) for matrix in separate)
        assert self.names.fused
        both, down = (self.layouts[matrix] for matrix in self.names.fused)
        half = (both.rows // 2, both.cols)
        return half, half, (down.rows, down.cols)


def recognise_experts(experts: ExpertMap, names: ExpertNames) -> ExpertFormat:
    """The format of all experts. Raises `EngineError` that names the tensor for an unknown, mixed or damaged one."""
    found = {matrix: recognise(matrix, parts) for matrix, parts in experts.sample.matrices().items()}
    groups = [group for group in (names.separate, names.fused) if group and not found.keys().isdisjoint(group)]
    expected = max(groups, key=lambda group: len(found.keys() & set(group)))
    if missing := [matrix for matrix in expected if matrix not in found]:
        raise EngineError(
            "checkpoint.missing_tensor", f"The experts have no {missing[0]}.", "The download is incomplete: get it again."
        )
    return ExpertFormat(require_one_format(found.values()), names, {matrix: layout for matrix, (_, layout) in found.items()})


class ExpertBinder:
    """`small` holds the resident parts by tensor name."""

    def __init__(self, experts: ExpertMap, form: ExpertFormat, small: dict[str, torch.Tensor]) -> None:
        self._experts, self._form, self._small = experts, form, small

    def bind(self, layer: int, expert: int, memory: torch.Tensor) -> Matrices:
        """Gate, up and down of an expert whose runs have been read into `memory`, uint8 [stride]."""
        where = self._experts.ranges[layer][expert]
        parts: dict[str, dict[str, torch.Tensor]] = {matrix: {} for matrix in self._form.layouts}
        for part in where.parts:
            start = part_start(where, part)
            parts[part.matrix][part.suffix] = memory[start : start + part.ref.nbytes]
        for matrix, suffix, ref in where.small:
            parts[matrix][suffix] = self._small[ref.name]
        bound = {matrix: layout.bind(parts[matrix]) for matrix, layout in self._form.layouts.items()}
        names = self._form.names
        if names.separate and names.separate[0] in bound:
            gate, up, down = (bound[matrix] for matrix in names.separate)
            return gate, up, down
        assert names.fused
        both, down = (bound[matrix] for matrix in names.fused)
        half = both.rows // 2
        if names.is_interleaved:
            return both.take(0, half, 2), both.take(1, half, 2), down
        return both.take(0, half), both.take(half, half), down
