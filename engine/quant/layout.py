"""What the quantised formats share: the parts of one matrix, and how they become the kernels' `Weight`. Knows no format."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.kernels.weights import Format, ScaleType, Weight, as_bytes

Parts = Mapping[str, TensorRef]  # by suffix after the matrix's stem: ".weight", ".weight_scale", "_blocks"
SCALE_TYPES = {
    "F32": ScaleType.F32, "BF16": ScaleType.BF16, "F16": ScaleType.F16, "F8_E8M0": ScaleType.E8M0, "F8_E4M3": ScaleType.E4M3,
}  # fmt: skip
TORCH_SCALES = {
    ScaleType.F32: torch.float32, ScaleType.BF16: torch.bfloat16, ScaleType.F16: torch.float16,
    ScaleType.E8M0: torch.float8_e8m0fnu, ScaleType.E4M3: torch.float8_e4m3fn,
}  # fmt: skip
BIAS_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


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

    @property
    def parts(self) -> tuple[str, ...]:
        """Suffixes whose bytes a slot must hold, in use order."""
        return tuple(part for part in (self.data, self.scales, self.zeros, self.bias, self.global_scale) if part is not None)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        """The weight over loaded parts, by suffix: anything contiguous, used in place. Raises `EngineError`."""

        def part(suffix: str | None) -> torch.Tensor | None:
            return None if suffix is None else as_bytes(tensors[suffix])

        bias = part(self.bias)
        return Weight(
            self.format, self.rows, self.cols, as_bytes(tensors[self.data]), self.row_stride,
            self.scale_type, part(self.scales), self.scale_row_stride, self.scale_col_stride, self.block_rows, self.block_cols,
            part(self.zeros), self.zero_stride, self.zero_offset,
            self._global_scale(tensors), None if bias is None else _aligned(bias, BIAS_TYPES[self.bias_dtype]),
        )  # fmt: skip

    def _global_scale(self, tensors: Mapping[str, torch.Tensor]) -> float:
        if self.global_scale is None:
            return 1.0
        value = float(_aligned(as_bytes(tensors[self.global_scale]), torch.float32)[0])
        if not 0.0 < value < float("inf"):
            raise damaged(self.stem + self.global_scale, f"its value is {value}")
        return 1.0 / value if self.divides else value


def _aligned(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes as numbers; a copy only where the file placed them off their alignment."""
    return (data.clone() if data.data_ptr() % dtype.itemsize else data).view(dtype)


def check_scales(weight: Weight, name: str) -> None:
    """Refuses a scale that is NaN or infinite, by name. Reads every scale once. Raises `EngineError`."""
    if weight.scales is None:
        return
    dtype = TORCH_SCALES[weight.scale_type]
    whole = weight.scales[: weight.scales.numel() // dtype.itemsize * dtype.itemsize]
    bad = int((~torch.isfinite(_aligned(whole, dtype).float())).sum())
    if bad:
        raise damaged(name, f"{bad} of its scales are not finite numbers")


def expect(stem: str, parts: Parts, suffix: str, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> TensorRef:
    """The part, or an `EngineError` that names it when it is missing, of another type or of another shape."""
    ref = parts.get(suffix)
    if ref is None:
        raise EngineError("checkpoint.missing_tensor", f"Tensor {stem}{suffix} is missing.", "The download is incomplete.")
    if ref.dtype not in dtypes:
        raise damaged(ref.name, f"its type is {ref.dtype} where {' or '.join(dtypes)} belongs")
    if ref.shape != shape:
        raise damaged(ref.name, f"its shape is {list(ref.shape)} where {list(shape)} belongs")
    return ref


def groups(stem: str, columns: int, scales: TensorRef) -> int:
    """Columns that share a scale, from the scales' own shape [rows, groups]. Raises `EngineError` when it does not divide."""
    count = scales.shape[-1] if scales.shape else 0
    if count == 0 or columns % count:
        raise damaged(scales.name, f"{count} scales do not divide {columns} columns")
    return columns // count


def bias_of(stem: str, parts: Parts, suffix: str, rows: int) -> tuple[str | None, str]:
    """Suffix and dtype of an optional bias [rows]."""
    if suffix not in parts:
        return None, ""
    shape = parts[suffix].shape
    ref = expect(stem, parts, suffix, tuple(BIAS_TYPES), (*shape[:-1], rows))
    return suffix, ref.dtype


def damaged(name: str, reason: str) -> EngineError:
    return EngineError("checkpoint.layout", f"Tensor {name} cannot be used: {reason}.", "Get another release of this model.")
