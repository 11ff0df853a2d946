"""FP8: `weight` F8_E4M3 [out, in] with scales per block, per channel or per tensor.

Published as `weight_scale_inv` (DeepSeek, GLM, Qwen; F32, BF16 or E8M0, blocks of 128 x 128, 32 x 32 and others) or
`weight_scale` (compressed-tensors, ModelOpt: [out, 1], [out / B, in / B], [1] or a scalar; MXFP8: U8 [out, in / 32]).
Both multiply. The block is what the scales' shape says: the smallest power of two that gives that many rows and columns of
blocks, else what divides the matrix.
"""

from math import prod

from engine.checkpoint.safetensors import TensorRef
from engine.kernels.weights import Format
from engine.quant.layout import SCALE_TYPES, DamagedError, Layout, Parts, bias_of, expect, matrix_of

SCALES = (".weight_scale_inv", ".weight_scale", ".scale")


def recognises(parts: Parts) -> bool:
    return ".weight" in parts and parts[".weight"].dtype == "F8_E4M3"


def describe(stem: str, parts: Parts) -> Layout:
    rows, cols = matrix_of(parts, ".weight")
    suffix = next((suffix for suffix in SCALES if suffix in parts), SCALES[0])
    found = parts[suffix].shape if suffix in parts else ()
    scales = expect(parts, suffix, ("F32", "BF16", "F16", "F8_E8M0", "U8"), found)
    block_rows, block_cols = _block(rows, cols, scales)
    size = scales.nbytes // prod(scales.shape)
    per_row = -(-cols // block_cols)
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return Layout(
        stem, Format.E4M3, rows, cols, ".weight", cols,
        suffix, SCALE_TYPES[scales.dtype], per_row * size, size, block_rows, block_cols,
        bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip


def _block(rows: int, cols: int, scales: TensorRef) -> tuple[int, int]:
    if prod(scales.shape) == 1:
        return rows, cols
    if scales.shape in ((rows,), (rows, 1)):
        return 1, cols
    if len(scales.shape) == 2:
        block = _edge(rows, scales.shape[0]), _edge(cols, scales.shape[1])
        if None not in block:
            return block[0] or rows, block[1] or cols
    raise DamagedError(scales, f"scales {list(scales.shape)} do not divide a matrix of {rows} x {cols}")


def _edge(size: int, count: int) -> int | None:
    """The block's edge when `count` of them cover `size`: a power of two with the last block partial, else an exact part."""
    if count == 1:
        return size
    edge = 1
    while edge < size:
        if -(-size // edge) == count:
            return edge
        edge *= 2
    return size // count if count > 0 and size % count == 0 else None
