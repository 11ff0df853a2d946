"""NVFP4: E2M1 codes, two to a byte, an E4M3 scale per 16 columns and one F32 scale for the matrix.

ModelOpt: `weight` U8 [out, in / 2], `weight_scale` F8_E4M3 [out, in / 16], `weight_scale_2` F32, which multiplies.
compressed-tensors (nvfp4-pack-quantized): `weight_packed`, `weight_scale`, `weight_global_scale` F32, which divides.
`input_scale` and `input_global_scale` are for activations in FP4: unused, the kernels keep activations wider.
"""

from engine.kernels.weights import Format, ScaleType
from engine.quant.layout import DamagedError, Layout, Parts, bias_of, expect, matrix_of

BLOCK = 16


def recognises(parts: Parts) -> bool:
    scale = parts.get(".weight_scale")
    codes = parts.get(".weight_packed") or parts.get(".weight")
    has_codes = codes is not None and codes.dtype in ("U8", "F4")
    return has_codes and (scale is None or scale.dtype == "F8_E4M3" or not _GLOBAL.isdisjoint(parts))


_GLOBAL = frozenset({".weight_scale_2", ".weight_global_scale"})


def describe(stem: str, parts: Parts) -> Layout:
    is_packed = ".weight_packed" in parts
    data, whole = (".weight_packed", ".weight_global_scale") if is_packed else (".weight", ".weight_scale_2")
    rows, width = matrix_of(parts, data, "[out, in / 2]")
    cols = width * (1 if parts[data].dtype == "F4" else 2)
    if cols % BLOCK:
        raise DamagedError(parts[data], f"{cols} columns are no multiple of {BLOCK}")
    expect(parts, ".weight_scale", ("F8_E4M3",), (rows, cols // BLOCK))
    scalar = parts[whole].shape if whole in parts and parts[whole].shape in ((), (1,)) else (1,)
    expect(parts, whole, ("F32",), scalar)
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return Layout(
        stem, Format.E2M1, rows, cols, data, cols // 2,
        ".weight_scale", ScaleType.E4M3, cols // BLOCK, 1, 1, BLOCK,
        global_scale=whole, divides=is_packed, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip
