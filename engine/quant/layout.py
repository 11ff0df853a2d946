"""What the quantised formats share: the parts of one matrix, and how they become the kernels' `Weight`. Knows no format.

Headers are checked when a matrix is described, contents (`Layout.fault`) when its bytes are there.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.kernels.weights import Format, ScaleType, Weight, as_bytes

Parts = Mapping[str, TensorRef]  # by suffix after the matrix's stem: ".weight", ".weight_scale", "_blocks"
SCALE_TYPES = {
    "F32": ScaleType.F32, "BF16": ScaleType.BF16, "F16": ScaleType.F16, "F8_E4M3": ScaleType.E4M3,
    "F8_E8M0": ScaleType.E8M0, "U8": ScaleType.E8M0,
}  # fmt: skip
_SCALE_CODES = {  # as integers, the first code of those that is no finite number, and as numbers
    ScaleType.F32: (torch.int32, 0x7F800000, torch.float32),
    ScaleType.BF16: (torch.int16, 0x7F80, torch.bfloat16),
    ScaleType.F16: (torch.int16, 0x7C00, torch.float16),
    ScaleType.E8M0: (torch.uint8, 0xFF, torch.float8_e8m0fnu),
    ScaleType.E4M3: (torch.int8, 0x7F, torch.float8_e4m3fn),
}
BIAS_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class DamagedError(Exception):
    """What the headers of a matrix have wrong; `recognise` says it with the format's name."""

    def __init__(self, ref: TensorRef, reason: str) -> None:
        super().__init__(reason)
        self.ref, self.reason = ref, reason


@dataclass(frozen=True, slots=True)
class Layout:
    """One matrix of a quantised format. Fused tensors [E, ...] are described as one expert's slice."""

    stem: str
    format: Format
    rows: int
    cols: int
    data: str  # suffix of the part that holds the codes
    row_stride: int
    scales: str | None = None
    scale_type: ScaleType = ScaleType.NONE
    scale_row_stride: int = 0
    scale_col_stride: int = 0
    block_rows: int = 0
    block_cols: int = 0
    zeros: str | None = None
    zero_stride: int = 0
    zero_offset: int = 0
    global_scale: str | None = None
    divides: bool = False  # compressed-tensors stores the inverse of the global scale
    bias: str | None = None
    bias_dtype: str = ""
    order: str | None = None  # I32 [in], each column's group
    declared: str | None = None  # I64 or I32 [2], the matrix's shape
    element_step: int = 0  # of `Weight`: 1 where the file holds [in, out]
    kind: str = ""  # the format as people name it

    @property
    def parts(self) -> tuple[str, ...]:
        """Suffixes whose bytes must be there, in use order."""
        every = (self.data, self.scales, self.zeros, self.bias, self.global_scale, self.order, self.declared)
        return tuple(part for part in every if part is not None)

    def configured(self, quantization: Mapping[str, Any]) -> "Layout":
        """The same with what the headers leave open taken from config.json's `quantization_config`."""
        return self

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """The weight over loaded parts, by suffix: anything contiguous, used in place, whatever its numbers are."""

        def part(suffix: str | None) -> torch.Tensor | None:
            return None if suffix is None else as_bytes(tensors[suffix])

        bias = part(self.bias)
        return Weight(
            self.format, self.rows, self.cols, as_bytes(tensors[self.data]), self.row_stride,
            self.scale_type, part(self.scales), self.scale_row_stride, self.scale_col_stride, self.block_rows, self.block_cols,
            part(self.zeros), self.zero_stride, self.zero_offset,
            self._global_scale(tensors), None if bias is None else _aligned(bias, BIAS_TYPES[self.bias_dtype]),
            self.element_step,
        )  # fmt: skip

    def _global_scale(self, tensors: Mapping[str, torch.Tensor]) -> float:
        if self.global_scale is None:
            return 1.0
        value = float(_aligned(as_bytes(tensors[self.global_scale]), torch.float32)[0])
        return value if not self.divides else 1.0 / value if value else math.inf

    def fault(self, suffix: str, data: torch.Tensor) -> str | None:
        """What makes the contents of a part unusable, or None. `data` is uint8, of one matrix or of several end to end."""
        if suffix == self.scales:
            return _fault_of_scales(data, self.scale_type)
        if suffix == self.global_scale:
            values = _aligned(data, torch.float32)
            return None if bool(((values > 0) & (values < math.inf)).all()) else "it is no positive number"
        if suffix == self.order:
            ascending = torch.arange(self.cols, dtype=torch.int32) // self.block_cols
            alike = bool((_aligned(data, torch.int32).view(-1, self.cols) == ascending).all())
            return None if alike else "its columns are reordered (act-order), which is not supported"
        if suffix == self.declared:
            shapes = _aligned(data, torch.int64).view(-1, 2)
            alike = bool((shapes == torch.tensor(self.shape)).all())
            return None if alike else f"it says {shapes[0].tolist()} of a matrix of {list(self.shape)}"
        return None

    def check(self, suffix: str, data: torch.Tensor, ref: TensorRef) -> None:
        """Raises `EngineError` naming tensor, file and format where `fault` finds something."""
        if (reason := self.fault(suffix, data)) is not None:
            raise unusable(ref, self.kind, reason)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


def _aligned(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as numbers; a copy only where the file placed them off their alignment."""
    return (data.clone() if data.data_ptr() % dtype.itemsize else data).view(dtype)


def _fault_of_scales(data: torch.Tensor, kind: ScaleType) -> str | None:
    """Usable scales are positive, so that as integers they lie from 0 to below the first code that is no number: one pass,
    since it runs between an expert's read and its use. Only where that fails are they looked at as numbers."""
    integers, first_bad, numbers = _SCALE_CODES[kind]
    low, high = _aligned(data, integers).aminmax()
    if int(low) >= 0 and int(high) < first_bad:
        return None
    bad = int((~torch.isfinite(_aligned(data, numbers).float())).sum())
    return f"{bad} of its scales are not finite numbers" if bad else None


def expect(parts: Parts, suffix: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> TensorRef:
    """The part; raises `DamagedError` where it is missing, of another type or of another shape."""
    ref = parts.get(suffix)
    if ref is None:
        raise DamagedError(max(parts.values(), key=lambda part: part.nbytes), f"it has no {suffix} beside it")
    if ref.dtype not in dtypes:
        raise DamagedError(ref, f"its type is {ref.dtype} where {' or '.join(dtypes)} belongs")
    if ref.shape != shape:
        raise DamagedError(ref, f"its shape is {list(ref.shape)} where {list(shape)} belongs")
    return ref


def matrix_of(parts: Parts, suffix: str, meaning: str = "[out, in]") -> tuple[int, int]:
    """The shape of a part that must be a matrix with something in it."""
    ref = parts[suffix]
    if len(ref.shape) != 2 or 0 in ref.shape:
        raise DamagedError(ref, f"its shape is {list(ref.shape)} where {meaning} belongs")
    return ref.shape[0], ref.shape[1]


def groups(columns: int, count: int, scales: TensorRef) -> int:
    """Columns that share a scale, when `count` scales cover them. Raises `DamagedError` when they do not divide."""
    if count == 0 or columns % count:
        raise DamagedError(scales, f"{count} scales do not divide {columns} columns")
    return columns // count


def bias_of(parts: Parts, suffix: str, rows: int) -> tuple[str | None, str]:
    """Suffix and dtype of an optional bias [rows]."""
    if suffix not in parts:
        return None, ""
    shape = parts[suffix].shape
    ref = expect(parts, suffix, tuple(BIAS_TYPES), (*shape[:-1], rows))
    return suffix, ref.dtype


def optional(parts: Parts, suffix: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> str | None:
    """The suffix where that part is there, checked as by `expect`; else None."""
    if suffix not in parts:
        return None
    expect(parts, suffix, dtypes, shape)
    return suffix


def unusable(ref: TensorRef, kind: str, reason: str) -> EngineError:
    return EngineError(
        "checkpoint.layout",
        f"Tensor {ref.name} in {ref.file.name} cannot be used as {kind}: {reason}.",
        "The file is damaged or laid out in a way that this version does not read: get the model again, or another release.",
    )
