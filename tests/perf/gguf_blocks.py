"""Encoded weights to GGUF blocks of the same values. Arrays only: no names of models, no files.

Exact for plain types, MXFP4, NVFP4 and int4. FP8 has no block type in GGUF and becomes Q8_0, the nearest that llama.cpp runs fast
(8.5 bits against 8). Block layouts: `gguf.quants`, which tests hold these against.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

Array = npt.NDArray[Any]
Blocks = tuple[Type, Array]  # bytes [..., rows, bytes per row], or float32 [...] for F32


def plain(codes: Array, dtype: str, wanted: Type) -> Blocks:
    """BF16 (as uint16 bits), F16 or F32 in another plain type; `wanted` BF16 keeps BF16 exactly."""
    if wanted == Type.BF16 and dtype == "BF16":
        return Type.BF16, np.ascontiguousarray(codes).view(np.uint8)
    values = to_float(codes, dtype)
    return (Type.F32, values) if wanted == Type.F32 else (wanted, quantize(values, wanted).view(np.uint8))


def to_float(codes: Array, dtype: str) -> Array:
    """float32 values of a plain type."""
    if dtype == "BF16":
        return (codes.astype(np.uint32) << 16).view(np.float32)
    return codes.astype(np.float32)


def mxfp4(packed: Array, scales: Array) -> Blocks:
    """packed [..., cols / 2], scales [..., cols / 32]: even column in the low nibble to column j low, j + 16 high."""
    pairs = packed.reshape(*scales.shape, 16)
    blocks = np.empty((*scales.shape, 17), dtype=np.uint8)
    blocks[..., 0] = scales
    first, last = pairs[..., :8], pairs[..., 8:]
    blocks[..., 1::2] = (first & 15) | (last << 4)
    blocks[..., 2::2] = (first >> 4) | (last & 0xF0)
    return Type.MXFP4, blocks.reshape(*scales.shape[:-1], -1)


def nvfp4(packed: Array, scales: Array) -> Blocks:
    """packed [..., cols / 2], scales E4M3 [..., cols / 16]. The matrix's own scale is a tensor apart."""
    pairs = packed.reshape(*scales.shape, 8)
    codes = np.empty_like(pairs)
    first, last = pairs[..., :4], pairs[..., 4:]
    codes[..., 0::2] = (first & 15) | (last << 4)
    codes[..., 1::2] = (first >> 4) | (last & 0xF0)
    groups = (*scales.shape[:-1], scales.shape[-1] // 4)
    blocks = np.concatenate((scales.reshape(*groups, 4), codes.reshape(*groups, 32)), axis=-1)
    return Type.NVFP4, blocks.reshape(*groups[:-1], -1)


def int4(words: Array, scales: Array, group: int) -> Blocks:
    """words int32 [..., cols / 8] of codes plus 8, scales float32 [..., cols / group], to Q4_0: both hold (code - 8) * scale."""
    nibbles = np.ascontiguousarray(words).view(np.uint8)  # little-endian words: the even column is in the low nibble
    grouped = nibbles.reshape(*nibbles.shape[:-1], -1, 16)  # blocks of 32 columns
    blocks = np.empty((*grouped.shape[:-1], 18), dtype=np.uint8)
    halves = np.repeat(scales.astype(np.float16), group // 32, axis=-1)
    blocks[..., :2] = halves[..., None].view(np.uint8)
    first, last = grouped[..., :8], grouped[..., 8:]
    blocks[..., 2::2] = (first & 15) | (last << 4)
    blocks[..., 3::2] = (first >> 4) | (last & 0xF0)
    return Type.Q4_0, blocks.reshape(*grouped.shape[:-2], -1)


def fp8(codes: Array, scales: Array, block: int) -> Blocks:
    """codes E4M3 [rows, cols], scales float32 [rows / block, cols / block], rounded up."""
    rows, cols = codes.shape
    spread = np.repeat(np.repeat(scales, block, axis=0)[:rows], block, axis=1)[:, :cols]
    return Type.Q8_0, quantize(_E4M3[codes] * spread, Type.Q8_0)


def _e4m3_values() -> Array:
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    sizes = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


_E4M3 = _e4m3_values()
