"""What the kernels of a device need to know of a matrix beside its addresses, which differ from slot to slot.

The addresses are words of the C descriptor, `engine.kernels.abi.Expert`; where they stand in it is asked of ctypes.
"""

import ctypes
from dataclasses import dataclass
from functools import lru_cache

from engine.kernels import abi
from engine.kernels.weights import PLAIN, Format, ScaleType, Weight

_WORD = ctypes.sizeof(ctypes.c_int64)
_PLAIN_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_SIZES = _PLAIN_SIZES | {"E4M3": 1, "E8M0": 1}
_PACKED = ("E2M1", "INT4")
_LEAST_WIDTH = 32  # tl.dot takes sixteen numbers at least, here of every second column

WORDS = ctypes.sizeof(abi.Expert) // _WORD  # of an expert
GATE, UP, DOWN = (getattr(abi.Expert, name).offset // _WORD for name in ("gate", "up", "down"))
DATA, SCALES, ZEROS, BIAS = (getattr(abi.Matrix, name).offset // _WORD for name in ("data", "scales", "zeros", "bias"))
GLOBAL_WORD, GLOBAL_BYTE = divmod(abi.Matrix.global_scale.offset, _WORD)
POINTERS = tuple(matrix + part for matrix in (GATE, UP, DOWN) for part in (DATA, SCALES, ZEROS, BIAS))


@dataclass(frozen=True)
class Form:
    """What a kernel is compiled for. Sizes of blocks are 0 where one covers the whole dimension."""

    format: str
    scale: str
    block_rows: int
    group: int  # columns that share a scale
    has_zeros: bool
    zero_offset: int
    bias: str  # "NONE", or the type
    is_packed: bool  # two columns to a byte


@dataclass(frozen=True)
class MatrixShape:
    """`steps` between two rows and two columns of codes, of scales, between two words of zero points and two of the bias: in
    numbers of their type, zero points in bytes."""

    form: Form
    rows: int
    cols: int
    steps: tuple[int, int, int, int, int, int]

    def width(self, most: int) -> int:
        """Columns of a tile, at most so many and a power of two, whose groups are whole or which is part of one."""
        while self.form.group and most % self.form.group and self.form.group % most:
            most //= 2
        return most


def shape_of(weight: Weight) -> MatrixShape | None:
    """None for what these kernels do not read: columns outermost, blocks of odd sizes, steps of no whole number."""
    bias = weight.bias
    return _shape(
        weight.format, weight.scale_type if weight.scales is not None else ScaleType.NONE, weight.rows, weight.cols,
        weight.row_stride, weight.element_step, weight.scale_row_stride, weight.scale_col_stride,
        weight.block_rows, weight.block_cols, weight.zeros is not None, weight.zero_stride, weight.zero_offset,
        *((ScaleType.NONE, 0) if bias is None else (ScaleType[PLAIN[bias.dtype].name], bias.stride(0) * bias.itemsize)),
    )  # fmt: skip


def shape_at(matrix: abi.Matrix) -> MatrixShape | None:
    """The same of a descriptor."""
    return _shape(
        matrix.format, matrix.scale_type, matrix.rows, matrix.cols, matrix.row_stride, matrix.element_step,
        matrix.scale_row_stride, matrix.scale_col_stride, matrix.block_rows, matrix.block_cols,
        bool(matrix.zeros), matrix.zero_stride, matrix.zero_offset, matrix.bias_type, matrix.bias_stride,
    )  # fmt: skip


@lru_cache(1024)
def _shape(
    encoding: int, scale_type: int, rows: int, cols: int, row_stride: int, element_step: int, scale_row_stride: int,
    scale_col_stride: int, block_rows: int, block_cols: int, has_zeros: bool, zero_stride: int, zero_offset: int,
    bias_type: int, bias_stride: int,
) -> MatrixShape | None:  # fmt: skip
    codes, scale, bias = Format(encoding).name, ScaleType(scale_type).name, ScaleType(bias_type).name
    is_packed = codes in _PACKED
    if not (is_packed or codes in _SIZES) or (is_packed and (cols % 2 or scale == "NONE")):
        return None
    size, scale_size = _SIZES.get(codes, 1), _SIZES.get(scale, 1)
    row, column = (element_step * size, row_stride) if element_step else (row_stride, size)
    strides = (
        (row, size), (column, size), (scale_row_stride, scale_size), (scale_col_stride, scale_size), (zero_stride, 1),
        (bias_stride, _SIZES.get(bias, 1)),
    )  # fmt: skip
    if any(stride % unit for stride, unit in strides):
        return None
    one, two, three, four, five, six = (stride // unit for stride, unit in strides)
    whole_rows, whole_cols = block_rows >= rows, block_cols >= cols
    form = Form(
        codes, scale, 0 if whole_rows else block_rows, 0 if whole_cols else block_cols, has_zeros, zero_offset, bias, is_packed
    )
    shape = MatrixShape(form, rows, cols, (one, two, three, four, five, six))
    return shape if shape.width(_LEAST_WIDTH) == _LEAST_WIDTH else None
