"""Prefill: rows of x sorted by expert times tiles that are decoded as they come. A program makes TOKENS x ROWS numbers.

Operands have the type of x (bf16, fp16 or fp32), sums are fp32. `order` [P] names the pair of each sorted position, and each
block of positions belongs to one slot: see `engine.kernels.gpu.sorting`. What is multiplied by a packed matrix has its even
columns before its odd ones.
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
    words, order, block_slots, block_firsts, block_ends, x, mixed, num_rows, cols, top_k, alpha, limit, steps,
    F: tl.constexpr, ACTIVATION: tl.constexpr, PARTED: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """mixed [P, I] by position, in x's type, PARTED as a packed matrix takes it; grid (blocks of rows, blocks of positions)."""
    block = tl.program_id(1)
    slot = tl.load(block_slots + block)
    if slot >= 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        positions = tl.load(block_firsts + block) + tl.arange(0, TOKENS)
        taken = positions < tl.load(block_ends + block)
        given = tl.load(order + positions, mask=taken, other=0) // top_k
        own = words + slot.to(tl.int64) * _WORDS
        up = _of_slot(own + _UP, x, given, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH)
        gate = up
        if ACTIVATION != "RELU2":
            gate = _of_slot(own + _GATE, x, given, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH)
        values = activated(gate, up, alpha, limit, ACTIVATION)
        _put(mixed, positions, taken, rows, parted(rows, num_rows, PARTED), num_rows, values)


@triton.jit
def down(
    words, order, block_slots, block_firsts, block_ends, mixed, outputs, num_rows, cols, steps,
    F: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Rows of outputs [T * k, H] of mixed [P, I]; grid (blocks of rows, blocks of positions)."""
    block = tl.program_id(1)
    slot = tl.load(block_slots + block)
    if slot >= 0:
        rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        positions = tl.load(block_firsts + block) + tl.arange(0, TOKENS)
        taken = positions < tl.load(block_ends + block)
        own = words + slot.to(tl.int64) * _WORDS + _DOWN
        values = _of_slot(own, mixed, positions, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH)
        _put(outputs, tl.load(order + positions, mask=taken, other=0), taken, rows, rows, num_rows, values)


@triton.jit
def linear(
    data, scales, zeros, bias, factor, x, y, num_tokens, num_rows, cols, steps,
    F: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """y [T, out] of x [T, in], the matrix given by its addresses; grid (blocks of rows, blocks of tokens)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    taken = tokens < num_tokens
    parts = data.to(tl.int64), scales.to(tl.int64), zeros.to(tl.int64), bias.to(tl.int64), factor
    values = _product(parts, x, tokens, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH)
    _put(y, tokens, taken, rows, rows, num_rows, values)


@triton.jit
def _put(target, lines, taken, rows, places, num_rows, values):
    pointers = target + lines.to(tl.int64)[:, None] * num_rows + places[None, :]
    tl.store(pointers, values.to(target.dtype.element_ty), mask=taken[:, None] & (rows < num_rows)[None, :])


@triton.jit
def _of_slot(
    words, x, given, taken, rows, num_rows, cols, steps,
    F: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    return _product(matrix_at(words), x, given, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH)


@triton.jit
def _product(
    parts, x, given, taken, rows, num_rows, cols, steps,
    F: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """[TOKENS, ROWS] of the rows `given` of x."""
    data, scales, zeros, bias, factor = parts
    x += given.to(tl.int64)[:, None] * cols
    if is_aligned(data, scales):
        total = _dots(data, scales, zeros, x, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH, True)
    else:
        total = _dots(data, scales, zeros, x, taken, rows, num_rows, cols, steps, F, TOKENS, ROWS, WIDTH, False)
    total *= factor
    if F.bias != "NONE":
        total += bias_of(bias, rows, num_rows, steps[5], F)[None, :]
    return total


@triton.jit
def _dots(
    data, scales, zeros, x, taken, rows, num_rows, cols, steps,
    F: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    row_step, column_step, scale_row_step, scale_column_step, zero_step, bias_step = steps
    own = (rows < num_rows)[:, None]
    total = tl.zeros((TOKENS, ROWS), tl.float32)
    for first in range(0, cols, WIDTH):
        if F.is_packed:
            pairs = first // 2 + tl.arange(0, WIDTH // 2)
            inside = pairs < cols // 2
            scale = dequant.scales_of(scales, rows, num_rows, first, cols, scale_row_step, scale_column_step, F, WIDTH, ALIGNED)
            zero = dequant.zeros_of(zeros, rows, num_rows, first, cols, zero_step, F, WIDTH)
            low, high = dequant.packed(data, rows, pairs, own & inside[None, :], row_step, F, ALIGNED)
            given = taken[:, None] & inside[None, :]
            even = tl.load(x + pairs[None, :], mask=given, other=0.0)
            odd = tl.load(x + cols // 2 + pairs[None, :], mask=given, other=0.0)
            total = _add(total, even, dequant.scaled(low, scale, zero, F))
            total = _add(total, odd, dequant.scaled(high, scale, zero, F))
        else:
            columns = first + tl.arange(0, WIDTH)
            inside = columns < cols
            values = dequant.plain(data, rows, columns, own & inside[None, :], row_step, column_step, F, ALIGNED)
            if F.scale != "NONE":
                scale = dequant.scales_of(
                    scales, rows, num_rows, first, cols, scale_row_step, scale_column_step, F, WIDTH, ALIGNED
                )
                values = dequant.scaled(values, scale, scale, F)
            total = _add(total, tl.load(x + columns[None, :], mask=taken[:, None] & inside[None, :], other=0.0), values)
    return total


@triton.jit
def _add(total, x, values):
    """fp32 operands are multiplied as such."""
    return tl.dot(x, tl.trans(values.to(x.dtype)), total, input_precision="ieee")
