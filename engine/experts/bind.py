"""From the bytes of an expert to the matrices that the kernels take, in place. Knows formats through `engine.quant` alone."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.checkpoint.experts import ExpertMap, ExpertNames
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import COLUMNS_OUTERMOST, PLAIN, Weight
from engine.quant.layout import Layout, unusable
from engine.quant.registry import recognise, require_one_format
from engine.tiers.arena import part_start

Matrices = tuple[Weight | None, Weight, Weight]  # gate, up, down; no gate for activations without one


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
        """Gate (where there is one), up and down as [out, in]."""
        if separate := self.separate:
            return tuple(self.layouts[matrix].shape for matrix in separate)
        assert self.names.fused
        both, down = (self.layouts[matrix] for matrix in self.names.fused)
        half = (both.rows // 2, both.cols)
        return half, half, down.shape

    @property
    def separate(self) -> tuple[str, ...] | None:
        """The matrices' names where each is a tensor of its own, None where gate and up are fused."""
        return self.names.separate if self.names.separate and self.names.separate[0] in self.layouts else None


def recognise_experts(experts: ExpertMap, names: ExpertNames, quantization: Mapping[str, Any]) -> ExpertFormat:
    """The format of all experts. Raises `EngineError` that names the tensor for an unknown, mixed or damaged one."""
    matrices = experts.sample.matrices()
    layouts = {
        matrix: recognise(_stem(parts), parts, quantization, is_transposed=names.is_transposed)
        for matrix, parts in matrices.items()
    }
    groups = [group for group in (names.separate, names.fused) if group and not layouts.keys().isdisjoint(group)]
    expected = max(groups, key=lambda group: len(layouts.keys() & set(group)))
    if missing := [matrix for matrix in expected if matrix not in layouts]:
        raise EngineError(
            "checkpoint.missing_tensor", f"The experts have no {missing[0]}.", "The download is incomplete: get it again."
        )
    form = ExpertFormat(require_one_format(layouts.values()), names, layouts)
    if form.separate is None:
        _check_halves(layouts[expected[0]], matrices[expected[0]])
    return form


def _stem(parts: Mapping[str, TensorRef]) -> str:
    """What the names of a matrix's tensors have in common, without the index that stands for a slice of a fused one."""
    suffix, ref = next(iter(parts.items()))
    return ref.name.partition("[")[0].removesuffix(suffix)


def _check_halves(both: Layout, parts: Mapping[str, TensorRef]) -> None:
    """Gate and up of one tensor are used as two matrices: a block of scales may not lie in both."""
    half = both.rows // 2
    if both.format in COLUMNS_OUTERMOST:
        raise unusable(parts[both.data], both.kind, "gate and up are one matrix, which this format does not let part")
    if both.rows % 2 or (both.scales and both.block_rows < both.rows and half % both.block_rows):
        reason = f"its {both.rows} rows are not twice a whole number of {both.block_rows or 1}-row blocks"
        raise unusable(parts[both.data], both.kind, reason)


class ExpertBinder:
    """`small` holds the resident parts by tensor name."""

    def __init__(self, experts: ExpertMap, form: ExpertFormat, small: dict[str, torch.Tensor]) -> None:
        self._experts, self._form, self._small = experts, form, small

    def check_resident(self) -> None:
        """Reads the contents of all resident parts. Raises `EngineError` naming one that no kernel can use."""
        refs: dict[tuple[str, str], list[TensorRef]] = defaultdict(list)
        for experts in self._experts.ranges.values():
            for expert in experts:
                for matrix, suffix, ref in expert.small:
                    refs[matrix, suffix].append(ref)
        for (matrix, suffix), every in refs.items():
            layout = self._form.layouts[matrix]
            if layout.fault(suffix, torch.cat([self._small[ref.name] for ref in every])) is not None:
                for ref in every:
                    layout.check(suffix, self._small[ref.name], ref)

    def check_layout(self, memory: torch.Tensor, check: Callable[[Weight, str], None]) -> None:
        """Has `check` see an expert's matrices as they lie in a slot's `memory`, whatever it holds now."""
        bound = self._assemble(self._parts(self._experts.layers[0], 0, memory))
        stems = [layout.stem for layout in self._form.layouts.values()]
        for weight in filter(None, bound):
            check(weight, ", ".join(stems))

    def bind(self, layer: int, expert: int, memory: torch.Tensor) -> Matrices:
        """Gate, up and down of an expert whose runs have been read into `memory`, uint8 [stride]."""
        return self._assemble(self._parts(layer, expert, memory))

    def bind_slot(self, layer: int, expert: int, memory: torch.Tensor, table: ExpertTable, slot: int, kernels: Kernels) -> None:
        """The same as an entry of `table`, its contents looked at. Raises `EngineError` naming what no kernel can use."""
        table.set(slot, *self.bind(layer, expert, memory))
        self.check(layer, expert, memory, table, slot, kernels)

    def places(self, layer: int, expert: int) -> tuple[int, ...] | None:
        """Where its parts begin in a slot: experts with equal places look alike there. None where each has something of its
        own: a part that lies elsewhere, or a number that is not left in its place."""
        where = self._experts.ranges[layer][expert]
        if where.small or any(layout.global_scale for layout in self._form.layouts.values()):
            return None
        return tuple(part_start(where, part) for part in where.parts)

    def check(self, layer: int, expert: int, memory: torch.Tensor, table: ExpertTable, slot: int, kernels: Kernels) -> None:
        """Looks at the contents of an expert that has been bound. Raises `EngineError` naming what no kernel can use."""
        is_finite = kernels.has_finite_scales(table, slot)
        where = self._experts.ranges[layer][expert]
        for part in where.parts:
            layout = self._form.layouts[part.matrix]
            if part.suffix == layout.data or (part.suffix == layout.scales and is_finite):
                continue  # the kernels read scales faster, and know no names
            start = part_start(where, part)
            layout.check(part.suffix, memory[start : start + part.ref.nbytes], part.ref)

    def _parts(self, layer: int, expert: int, memory: torch.Tensor) -> dict[str, dict[str, torch.Tensor]]:
        """An expert's bytes by matrix and suffix."""
        where = self._experts.ranges[layer][expert]
        parts: dict[str, dict[str, torch.Tensor]] = {matrix: {} for matrix in self._form.layouts}
        for part in where.parts:
            start = part_start(where, part)
            parts[part.matrix][part.suffix] = memory[start : start + part.ref.nbytes]
        for matrix, suffix, ref in where.small:
            parts[matrix][suffix] = self._small[ref.name]
        return parts

    def _assemble(self, parts: dict[str, dict[str, torch.Tensor]]) -> Matrices:
        bound = {matrix: layout.bind(parts[matrix]) for matrix, layout in self._form.layouts.items()}
        if separate := self._form.separate:
            *gate, up, down = (bound[matrix] for matrix in separate)
            return gate[0] if gate else None, up, down
        names = self._form.names
        assert names.fused
        both, down = (bound[matrix] for matrix in names.fused)
        half = both.rows // 2
        if names.is_interleaved:
            return both.take(0, half, 2), both.take(1, half, 2), down
        return both.take(0, half), both.take(half, half), down
