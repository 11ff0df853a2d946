"""Tiles of a matrix as its checkpoint stores it, as fp32, for every kernel that multiplies; see `Weight` for the encodings.

Addresses are numbers, aligned to 8 bytes or, with ALIGNED false, to nothing: what is read is put together from bytes then.
Exponents are moved into those of fp16, whose small numbers no device flushes to zero.
"""

import triton
import triton.language as tl


@triton.jit
def number(address, places, inside, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """fp32 of the numbers at `places`, counted in numbers of that type; 0 outside."""
    if KIND == "F32":
        if ALIGNED:
            return tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 8) + places, mask=inside, other=0.0)
        else:
            return _word(address, places, inside).to(tl.float32, bitcast=True)
    elif KIND == "BF16":
        return (_half(address, places, inside, ALIGNED).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif KIND == "F16":
        return _half(address, places, inside, ALIGNED).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == "E8M0":
        exponents = _byte(address, places, inside, ALIGNED).to(tl.uint32)
        bits = tl.where(exponents == 0, 0x400000, exponents << 23)  # 2^-127 is a number without a leading one
        return bits.to(tl.uint32).to(tl.float32, bitcast=True)
    else:
        tl.static_assert(KIND == "E4M3")
        return e4m3(_byte(address, places, inside, ALIGNED))


@triton.jit
def e4m3(codes):
    wide = codes.to(tl.uint16)
    halves = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
    values = halves.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where((codes & 0x7F) == 0x7F, float("nan"), values)


@triton.jit
def e2m1(codes):
    wide = codes.to(tl.uint16)
    halves = ((wide & 0x8) << 12) | ((wide & 0x7) << 9)
    return halves.to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def plain(data, rows, columns, inside, row_step, column_step, F: tl.constexpr, ALIGNED: tl.constexpr):
    """Codes of one column each, [rows, columns]."""
    places = rows.to(tl.int64)[:, None] * row_step + columns[None, :] * column_step
    return number(data, places, inside, F.format, ALIGNED)


@triton.jit
def packed(data, rows, pairs, inside, row_step, F: tl.constexpr, ALIGNED: tl.constexpr):
    """Codes of two columns each, [rows, pairs]: the even columns and the odd ones."""
    codes = _byte(data, rows.to(tl.int64)[:, None] * row_step + pairs[None, :], inside, ALIGNED)
    low, high = codes & 0xF, codes >> 4
    if F.format == "E2M1":
        return e2m1(low), e2m1(high)
    else:
        return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def scales_of(
    scales, rows, num_rows, first, cols, row_step, column_step,
    F: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """[rows, groups] of the columns from `first` on."""
    groups = _groups(first, F, WIDTH)
    inside = (rows < num_rows)[:, None] & (_first_columns(groups, F) < cols)[None, :]
    blocks = _blocks(rows, F)
    return number(scales, blocks.to(tl.int64)[:, None] * row_step + groups[None, :] * column_step, inside, F.scale, ALIGNED)


@triton.jit
def zeros_of(zeros, rows, num_rows, first, cols, step, F: tl.constexpr, WIDTH: tl.constexpr):
    """Zero points of INT4, [rows, groups]: nibbles of words that hold eight rows."""
    groups = _groups(first, F, WIDTH)
    if F.has_zeros:
        inside = (rows < num_rows)[:, None] & (_first_columns(groups, F) < cols)[None, :]
        places = (rows // 8)[:, None] * step + groups[None, :] * 4 + (rows % 8 // 2)[:, None]
        pairs = _byte(zeros, places, inside, False)
        return ((pairs >> (rows % 2 * 4)[:, None].to(tl.uint8)) & 0xF).to(tl.float32) + F.zero_offset
    else:
        return tl.full((rows.shape[0], groups.shape[0]), 8.0, tl.float32)


@triton.jit
def scaled(codes, scales, zeros, F: tl.constexpr):
    """Codes [rows, columns] as weights, given the scales and zero points [rows, groups] of these columns."""
    grouped = tl.reshape(codes, (codes.shape[0], scales.shape[1], codes.shape[1] // scales.shape[1]))
    if F.format == "INT4":
        grouped -= zeros[:, :, None]
    return tl.reshape(grouped * scales[:, :, None], (codes.shape[0], codes.shape[1]))


@triton.jit
def _groups(first, F: tl.constexpr, WIDTH: tl.constexpr):
    if F.group == 0:
        return tl.arange(0, 1)
    elif F.group >= WIDTH:
        return first // F.group + tl.arange(0, 1)
    else:
        return first // F.group + tl.arange(0, WIDTH // F.group)


@triton.jit
def _first_columns(groups, F: tl.constexpr):
    return groups * F.group


@triton.jit
def _blocks(rows, F: tl.constexpr):
    if F.block_rows == 0:
        return rows * 0
    else:
        return rows // F.block_rows


@triton.jit
def _byte(address, places, inside, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(tl.uint8))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 8)
    return tl.load(pointer + places, mask=inside, other=0)


@triton.jit
def _half(address, places, inside, ALIGNED: tl.constexpr):
    if ALIGNED:
        return tl.load(tl.multiple_of(address.to(tl.pointer_type(tl.uint16)), 8) + places, mask=inside, other=0)
    else:
        low, high = _byte(address, 2 * places, inside, False), _byte(address, 2 * places + 1, inside, False)
        return low.to(tl.uint16) | (high.to(tl.uint16) << 8)


@triton.jit
def _word(address, places, inside):
    low, high = _half(address, 2 * places, inside, False), _half(address, 2 * places + 1, inside, False)
    return low.to(tl.uint32) | (high.to(tl.uint32) << 16)
