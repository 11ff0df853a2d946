"""Random matrices in every published encoding, with what they mean in float64, written from each format's definition."""

from collections.abc import Callable

import torch

from engine.kernels.weights import Format, ScaleType, Weight, as_bytes, plain

Made = tuple[Weight, torch.Tensor]  # and its values, float64 [rows, cols]

# OCP Microscaling Formats 1.0, table of E2M1 by code
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # row of each nibble, lowest first


def unaligned(data: torch.Tensor, shift: int = 1) -> torch.Tensor:
    """The same bytes at an odd address, ending with its buffer, so that a read beyond them is out of bounds."""
    raw = as_bytes(data.contiguous())
    room = torch.empty(raw.numel() + shift, dtype=torch.uint8)
    room[shift:] = raw
    return room[shift:]


def pack_low_first(codes: torch.Tensor) -> torch.Tensor:
    """Nibbles [rows, cols] to bytes, the even column low."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


def pack_words(nibbles: torch.Tensor) -> torch.Tensor:
    """Nibbles [..., 8], lowest first, to int32 [...]."""
    words = torch.zeros(nibbles.shape[:-1], dtype=torch.int64)
    for index in range(8):
        words |= nibbles[..., index].long() << 4 * index
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def dense(dtype: torch.dtype) -> Callable[[int, int], Made]:
    def make(rows: int, cols: int) -> Made:
        values = torch.randn(rows, cols).to(dtype)
        weight = plain(values)
        return Weight(weight.format, rows, cols, unaligned(values), weight.row_stride), values.double()

    return make


def by_columns(dtype: torch.dtype, step: int = 1) -> Callable[[int, int], Made]:
    """Stored [in, out]; with a step, every so manieth row of a larger matrix, and other numbers in between."""

    def make(rows: int, cols: int) -> Made:
        stored = torch.randn(cols, rows * step).to(dtype)
        whole = Weight(plain(stored).format, rows * step, cols, unaligned(stored), rows * step * dtype.itemsize, element_step=1)
        return whole.take(step - 1, rows, step), stored.t()[step - 1 :: step].double()

    return make


def fp8(block_rows: int, block_cols: int, scale: torch.dtype = torch.float32) -> Callable[[int, int], Made]:
    """Blocks of the given size, 0 for the whole dimension."""

    def make(rows: int, cols: int) -> Made:
        tall, wide = block_rows or rows, block_cols or cols
        codes = (torch.randn(rows, cols) * 50).to(torch.float8_e4m3fn)
        shape = (-(-rows // tall), -(-cols // wide))
        scales = (
            torch.exp2(torch.randint(-8, 0, shape).float()).to(scale)
            if scale == torch.float8_e8m0fnu
            else torch.rand(shape).to(scale)
        )
        spread = scales.double().repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :cols]
        kind = {torch.float32: ScaleType.F32, torch.bfloat16: ScaleType.BF16, torch.float8_e8m0fnu: ScaleType.E8M0}[scale]
        size = scales.itemsize
        weight = Weight(
            Format.E4M3, rows, cols, unaligned(codes), cols, kind, unaligned(scales), shape[1] * size, size, tall, wide
        )
        return weight, codes.double() * spread

    return make


def mxfp4(rows: int, cols: int) -> Made:
    codes = torch.randint(0, 16, (rows, cols))
    exponents = torch.randint(115, 130, (rows, cols // 32), dtype=torch.uint8)
    values = E2M1[codes] * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1)
    weight = Weight(
        Format.E2M1, rows, cols, unaligned(pack_low_first(codes)), cols // 2,
        ScaleType.E8M0, unaligned(exponents), cols // 32, 1, 1, 32,
    )  # fmt: skip
    return weight, values


def nvfp4(rows: int, cols: int) -> Made:
    codes = torch.randint(0, 16, (rows, cols))
    scales = (torch.rand(rows, cols // 16) * 448).to(torch.float8_e4m3fn)
    values = E2M1[codes] * scales.double().repeat_interleave(16, 1) * 0.0078125
    weight = Weight(
        Format.E2M1, rows, cols, unaligned(pack_low_first(codes)), cols // 2,
        ScaleType.E4M3, unaligned(scales), cols // 16, 1, 1, 16, global_scale=0.0078125,
    )  # fmt: skip
    return weight, values


def int4(group: int, zeroed: bool, scale: torch.dtype = torch.bfloat16) -> Callable[[int, int], Made]:
    def make(rows: int, cols: int) -> Made:
        block = group or cols
        codes = torch.randint(0, 16, (rows, cols))
        scales = (torch.rand(rows, cols // block) * 0.1).to(scale)
        zeros = torch.randint(0, 16, (rows, cols // block)) if zeroed else torch.full((rows, cols // block), 8)
        values = (codes - zeros.repeat_interleave(block, 1)).double() * scales.double().repeat_interleave(block, 1)
        packed_zeros = None
        if zeroed:  # along rows, padded to whole words
            padded = torch.zeros(-(-rows // 8) * 8, cols // block, dtype=torch.int64)
            padded[:rows] = zeros
            packed_zeros = unaligned(pack_words(padded.view(-1, 8, cols // block).permute(0, 2, 1)))
        kind = {torch.bfloat16: ScaleType.BF16, torch.float16: ScaleType.F16, torch.float32: ScaleType.F32}[scale]
        size = scales.itemsize
        weight = Weight(
            Format.INT4, rows, cols, unaligned(pack_low_first(codes)), cols // 2,
            kind, unaligned(scales), cols // block * size, size, 1, block, packed_zeros, cols // block * 4,
        )  # fmt: skip
        return weight, values

    return make


def gptq(group: int) -> Callable[[int, int], Made]:
    def make(rows: int, cols: int) -> Made:
        block = group or cols
        codes, zeros = torch.randint(0, 16, (rows, cols)), torch.randint(1, 16, (rows, cols // block))
        scales = (torch.rand(cols // block, rows) * 0.1).half()
        values = (codes - zeros.repeat_interleave(block, 1)).double() * scales.t().double().repeat_interleave(block, 1)
        qweight = pack_words(codes.t().reshape(cols // 8, 8, rows).permute(0, 2, 1))  # [cols / 8, rows]
        qzeros = pack_words((zeros - 1).t().reshape(cols // block, rows // 8, 8))  # [groups, rows / 8], less 1
        weight = Weight(
            Format.INT4_GPTQ, rows, cols, unaligned(qweight), rows * 4,
            ScaleType.F16, unaligned(scales), 2, rows * 2, 1, block, unaligned(qzeros), rows // 8 * 4, 1,
        )  # fmt: skip
        return weight, values

    return make


def awq(group: int) -> Callable[[int, int], Made]:
    def make(rows: int, cols: int) -> Made:
        block = group or cols
        codes, zeros = torch.randint(0, 16, (rows, cols)), torch.randint(0, 16, (rows, cols // block))
        scales = (torch.rand(cols // block, rows) * 0.1).half()
        values = (codes - zeros.repeat_interleave(block, 1)).double() * scales.t().double().repeat_interleave(block, 1)
        qweight = pack_words(codes.t().reshape(cols, rows // 8, 8)[..., list(AWQ_ORDER)])
        qzeros = pack_words(zeros.t().reshape(cols // block, rows // 8, 8)[..., list(AWQ_ORDER)])
        weight = Weight(
            Format.INT4_AWQ, rows, cols, unaligned(qweight), rows // 2,
            ScaleType.F16, unaligned(scales), 2, rows * 2, 1, block, unaligned(qzeros), rows // 2,
        )  # fmt: skip
        return weight, values

    return make


EXACT: dict[str, Callable[[int, int], Made]] = {
    "f32": dense(torch.float32),
    "f16": dense(torch.float16),
    "bf16": dense(torch.bfloat16),
    "f32-by-columns": by_columns(torch.float32),
    "f16-by-columns-3": by_columns(torch.float16, 3),
    "bf16-by-columns": by_columns(torch.bfloat16),
    "bf16-by-columns-2": by_columns(torch.bfloat16, 2),
    "fp8-128": fp8(128, 128),
    "fp8-32-e8m0": fp8(32, 32, torch.float8_e8m0fnu),
    "fp8-128-bf16": fp8(128, 128, torch.bfloat16),
    "fp8-channel": fp8(1, 0),
    "fp8-tensor": fp8(0, 0),
}
FOUR_BIT: dict[str, Callable[[int, int], Made]] = {
    "mxfp4": mxfp4,
    "nvfp4": nvfp4,
    "int4-32": int4(32, zeroed=False),
    "int4-128": int4(128, zeroed=False),
    "int4-128-zeros": int4(128, zeroed=True),
    "int4-channel-f32": int4(0, zeroed=False, scale=torch.float32),
    "int4-32-zeros-f16": int4(32, zeroed=True, scale=torch.float16),
    "gptq-128": gptq(128),
    "gptq-32": gptq(32),
    "awq-128": awq(128),
}


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    """Root mean square of the difference over that of the exact result."""
    return float((y.double() - exact).norm() / exact.norm())
