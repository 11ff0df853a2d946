"""One weight matrix as its checkpoint stores it: what every kernel takes. Knows encodings, no published name and no model.

The numbers of `Format`, `ScaleType` and `Activation` are those of cpu/stoker_kernels.h.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import torch


class Format(IntEnum):
    """How one weight is encoded. Row-major, but for GPTQ and AWQ."""

    F32 = 0
    F16 = 1
    BF16 = 2
    E4M3 = 3
    E2M1 = 4  # two to a byte, the even column in the low nibble
    INT4 = 5  # unsigned nibbles less 8 or less a zero point, the even column low
    INT4_GPTQ = 6  # int32 [cols / 8, rows], eight columns to a word
    INT4_AWQ = 7  # int32 [cols, rows / 8], eight rows to a word in the order 0 2 4 6 1 3 5 7


class ScaleType(IntEnum):
    NONE = 0
    F32 = 1
    BF16 = 2
    F16 = 3
    E8M0 = 4
    E4M3 = 5


class Activation(IntEnum):
    """The function between an expert's matrices."""

    SILU = 0
    GPT_OSS = 1
    GELU_TANH = 2
    RELU2 = 3  # no gate
    SILU_CLAMPED = 4


@dataclass(frozen=True, slots=True)
class ExpertMath:
    """The function between an expert's matrices, with its constants."""

    activation: Activation = Activation.SILU
    alpha: float = 1.702  # gpt-oss's
    limit: float = 7.0


SILU = ExpertMath()

PLAIN = {torch.float32: Format.F32, torch.float16: Format.F16, torch.bfloat16: Format.BF16}
COLUMNS_OUTERMOST = (Format.INT4_GPTQ, Format.INT4_AWQ)


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """Weight = (code - zero) * scale * global_scale, [rows = out, cols = in]. Strides are bytes; tensors are uint8 [bytes].

    The scale of (r, c) is at r // block_rows * scale_row_stride + c // block_cols * scale_col_stride.
    """

    format: Format
    rows: int
    cols: int
    data: torch.Tensor
    row_stride: int
    scale_type: ScaleType = ScaleType.NONE
    scales: torch.Tensor | None = None
    scale_row_stride: int = 0
    scale_col_stride: int = 0
    block_rows: int = 0
    block_cols: int = 0
    zeros: torch.Tensor | None = None
    zero_stride: int = 0
    zero_offset: int = 0
    global_scale: float = 1.0
    bias: torch.Tensor | None = None  # [rows] of F32, F16 or BF16, any stride
    element_step: int = 0  # of a plain matrix stored [cols, rows]: elements between its rows, and row_stride is a column's

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    def take(self, first: int, count: int, step: int = 1) -> "Weight":
        """`count` rows from `first` on, every `step`-th: halves and interleaved rows of a fused matrix, in place."""
        assert first + (count - 1) * step < self.rows, f"rows {first} to {first + (count - 1) * step} of {self.rows}"
        assert self.format not in COLUMNS_OUTERMOST, "GPTQ and AWQ matrices are not published fused"
        assert self.zeros is None or (step == 1 and first % 8 == 0), "zero points are packed by eight rows"
        if self.element_step:
            size = plain_dtype(self.format).itemsize
            return replace(
                self,
                rows=count,
                data=self.data[first * self.element_step * size :],
                element_step=self.element_step * step,
                bias=None if self.bias is None else self.bias[first::step][:count],
            )
        scales, scale_stride = self.scales, self.scale_row_stride
        if scales is not None and self.block_rows < self.rows:
            assert first % self.block_rows == 0, f"row {first} starts within a block of {self.block_rows} rows"
            assert step == 1 or self.block_rows == 1, "interleaved rows share a scale"
            scales, scale_stride = scales[first // self.block_rows * scale_stride :], scale_stride * step
        return replace(
            self,
            rows=count,
            data=self.data[first * self.row_stride :],
            row_stride=self.row_stride * step,
            scales=scales,
            scale_row_stride=scale_stride,
            zeros=None if self.zeros is None else self.zeros[first // 8 * self.zero_stride :],
            bias=None if self.bias is None else self.bias[first::step][:count],
        )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as uint8 [bytes]. The tensor must be contiguous."""
    assert tensor.is_contiguous(), "weights are used in place"
    return tensor.reshape(-1).view(torch.uint8)


def plain(tensor: torch.Tensor, bias: torch.Tensor | None = None) -> Weight:
    """A matrix of F32, F16 or BF16 as torch holds it."""
    assert tensor.dtype in PLAIN, f"{tensor.dtype} is no plain weight"
    assert tensor.dim() == 2, f"{tuple(tensor.shape)} is no matrix"
    rows, cols = tensor.shape
    return Weight(PLAIN[tensor.dtype], rows, cols, as_bytes(tensor), cols * tensor.itemsize, bias=bias)


def plain_tensor(weight: Weight) -> torch.Tensor:
    """The inverse of `plain`, in place: [rows, cols] of F32, F16 or BF16."""
    assert not weight.element_step, "stored by columns"
    data = weight.data[: weight.rows * weight.row_stride].view(plain_dtype(weight.format))
    return data.view(weight.rows, weight.cols)


def plain_dtype(form: Format) -> torch.dtype:
    return next(dtype for dtype, known in PLAIN.items() if known == form)
