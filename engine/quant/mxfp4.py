"""MXFP4: E2M1 codes, two to a byte, with one E8M0 scale per 32 columns. Source: OCP Microscaling Formats 1.0.

Published by gpt-oss as `_blocks` U8 [E, out, in / 32, 16] and `_scales` U8 [E, out, in / 32] (and `_bias`), per expert by
DeepSeek-V4, AMD Quark and others as `weight` [out, in / 2] with `weight_scale` or `scale` [out, in / 32] of U8 or F8_E8M0, and
by compressed-tensors (mxfp4-pack-quantized) as `weight_packed` with `weight_scale`.
The bytes are the same: the even column in the low nibble.
"""

from engine.kernels.weights import Format, ScaleType
from engine.quant.layout import DamagedError, Layout, Parts, bias_of, expect, matrix_of

BLOCK = 32
_CODES = ("U8", "I8", "F4")
_DATA = (".weight", ".weight_packed")
_SCALES = (".weight_scale", ".weight_scale_inv", ".scale")
_E8M0 = ("U8", "F8_E8M0")


def recognises(parts: Parts) -> bool:
    if "_blocks" in parts:
        return True
    codes = next((parts[suffix] for suffix in _DATA if suffix in parts), None)
    scales = next((parts[suffix] for suffix in _SCALES if suffix in parts), None)
    return codes is not None and codes.dtype in _CODES and scales is not None and scales.dtype in _E8M0


def describe(stem: str, parts: Parts) -> Layout:
    return _fused(stem, parts) if "_blocks" in parts else _single(stem, parts)


def _fused(stem: str, parts: Parts) -> Layout:
    shape = parts["_blocks"].shape
    if len(shape) < 3 or shape[-1] != BLOCK // 2 or 0 in shape:
        raise DamagedError(parts["_blocks"], f"its shape is {list(shape)} where [..., out, in / 32, 16] belongs")
    *_, rows, count, _ = shape
    expect(parts, "_blocks", ("U8",), shape)
    expect(parts, "_scales", _E8M0, shape[:-1])
    bias, bias_dtype = bias_of(parts, "_bias", rows)
    return Layout(
        stem, Format.E2M1, rows, count * BLOCK, "_blocks", count * BLOCK // 2,
        "_scales", ScaleType.E8M0, count, 1, 1, BLOCK, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip


def _single(stem: str, parts: Parts) -> Layout:
    data = next(suffix for suffix in _DATA if suffix in parts)
    rows, width = matrix_of(parts, data, "[out, in / 2]")
    cols = width * (1 if parts[data].dtype == "F4" else 2)
    if cols % BLOCK:
        raise DamagedError(parts[data], f"{cols} columns are no multiple of {BLOCK}")
    suffix = next(suffix for suffix in _SCALES if suffix in parts)
    expect(parts, suffix, _E8M0, (rows, cols // BLOCK))
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return Layout(
        stem, Format.E2M1, rows, cols, data, cols // 2,
        suffix, ScaleType.E8M0, cols // BLOCK, 1, 1, BLOCK, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip
