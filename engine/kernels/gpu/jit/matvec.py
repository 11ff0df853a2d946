"""Decode: single rows of x times matrices that are read once, in fp32. A program makes ROWS numbers of one product.

Shapes as in `Kernels.moe`; pairs are (token, rank), and those whose slot is -1 are another call's. What is multiplied by a
packed matrix has its even columns before its odd ones.
"""

import triton
import triton.language as tl

from engine.kernels.gpu import shape
from engine.kernels.gpu.jit import dequant
from engine.kernels.gpu.jit.descriptors import activated, bias_of, is_aligned, matrix_at, parted

_WORDS = tl.constexpr(shape.WORDS)
_GATE = tl.constexpr(shape.GATE)
_UP = tl.constexpr(shape.UP)
_DOWN = tl.constexpr(shape.DOWN)


@triton.jit
def gate_up(
    words, slots, x, mixed, num_rows, cols, top_k, alpha, limit, steps,
    F: tl.constexpr, ACTIVATION: tl.constexpr, PARTED: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """mixed [T * k, I] of x [T, H], PARTED as a packed matrix takes it; grid (blocks of rows, T * k)."""
    pair = tl.program_id(1)
    slot = tl.load(slots + pair)
    if slot >= 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        own, x = words + slot.to(tl.int64) * _WORDS, x + (pair // top_k).to(tl.int64) * cols
        up = _of_slot(own + _UP, x, rows, num_rows, cols, steps, F, ROWS, WIDTH)
        gate = up
        if ACTIVATION != "RELU2":
            gate = _of_slot(own + _GATE, x, rows, num_rows, cols, steps, F, ROWS, WIDTH)
        values = activated(gate, up, alpha, limit, ACTIVATION)
        places = parted(rows, num_rows, PARTED)
        tl.store(mixed + pair.to(tl.int64) * num_rows + places, values, mask=rows < num_rows)


@triton.jit
def down(
    words, slots, mixed, outputs, num_rows, cols, steps, F: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rows of outputs [T * k, H] of mixed [T * k, I]; grid (blocks of rows, T * k)."""
    pair = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + pair)
    if slot >= 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        own = words + slot.to(tl.int64) * _WORDS + _DOWN
        values = _of_slot(own, mixed + pair * cols, rows, num_rows, cols, steps, F, ROWS, WIDTH)
        tl.store(outputs + pair * num_rows + rows, values, mask=rows < num_rows)


@triton.jit
def linear(
    data, scales, zeros, bias, factor, x, y, num_rows, cols, steps,
    F: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y [T, out] of x [T, in], the matrix given by its addresses; grid (blocks of rows, T)."""
    token = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    parts = data.to(tl.int64), scales.to(tl.int64), zeros.to(tl.int64), bias.to(tl.int64), factor
    values = _product(parts, x + token * cols, rows, num_rows, cols, steps, F, ROWS, WIDTH)
    tl.store(y + token * num_rows + rows, values, mask=rows < num_rows)


@triton.jit
def _of_slot(words, x, rows, num_rows, cols, steps, F: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    return _product(matrix_at(words), x, rows, num_rows, cols, steps, F, ROWS, WIDTH)


@triton.jit
def _product(parts, x, rows, num_rows, cols, steps, F: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """[ROWS]."""
    data, scales, zeros, bias, factor = parts
    if is_aligned(data, scales):
        total = _dots(data, scales, zeros, factor, x, rows, num_rows, cols, steps, F, ROWS, WIDTH, True)
    else:
        total = _dots(data, scales, zeros, factor, x, rows, num_rows, cols, steps, F, ROWS, WIDTH, False)
    if F.bias != "NONE":
        total += bias_of(bias, rows, num_rows, steps[5], F)
    return total


@triton.jit
def _dots(
    data, scales, zeros, factor, x, rows, num_rows, cols, steps,
    F: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    row_step, column_step, scale_row_step, scale_column_step, zero_step, bias_step = steps
    own = (rows < num_rows)[:, None]
    if F.is_packed:
        total = tl.zeros((ROWS, WIDTH // 2), tl.float32)
        for first in range(0, cols, WIDTH):
            pairs = first // 2 + tl.arange(0, WIDTH // 2)
            inside = pairs < cols // 2
            scale = dequant.scales_of(scales, rows, num_rows, first, cols, scale_row_step, scale_column_step, F, WIDTH, ALIGNED)
            zero = dequant.zeros_of(zeros, rows, num_rows, first, cols, zero_step, F, WIDTH)
            low, high = dequant.packed(data, rows, pairs, own & inside[None, :], row_step, F, ALIGNED)
            even = tl.load(x + pairs, mask=inside, other=0.0)
            odd = tl.load(x + cols // 2 + pairs, mask=inside, other=0.0)
            total += dequant.scaled(low, scale, zero, F) * even[None, :] + dequant.scaled(high, scale, zero, F) * odd[None, :]
    else:
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in range(0, cols, WIDTH):
            columns = first + tl.arange(0, WIDTH)
            inside = columns < cols
            values = dequant.plain(data, rows, columns, own & inside[None, :], row_step, column_step, F, ALIGNED)
            if F.scale != "NONE":
                scale = dequant.scales_of(
                    scales, rows, num_rows, first, cols, scale_row_step, scale_column_step, F, WIDTH, ALIGNED
                )
                values = dequant.scaled(values, scale, scale, F)
            total += values * tl.load(x + columns, mask=inside, other=0.0)[None, :]
    return tl.sum(total, axis=1) * factor
