"""compressed-tensors `pack-quantized`, 4 bits: `weight_packed` I32 [out, in / 8], the lowest nibble first, each code plus 8;
`weight_scale` [out, groups] BF16, F16 or F32; asymmetric ones add `weight_zero_point` I32 [out / 8, groups], packed along out.
`weight_shape` I64 [2] repeats the matrix's shape.
"""

from engine.kernels.weights import Format
from engine.quant.layout import SCALE_TYPES, Layout, Parts, bias_of, damaged, expect, groups


def recognises(parts: Parts) -> bool:
    return ".weight_packed" in parts and parts[".weight_packed"].dtype == "I32"


def describe(stem: str, parts: Parts) -> Layout:
    codes = parts[".weight_packed"]
    if len(codes.shape) != 2:
        raise damaged(codes.name, f"its shape is {list(codes.shape)} where a matrix belongs")
    rows, cols = codes.shape[0], codes.shape[1] * 8
    count = parts[".weight_scale"].shape[-1] if ".weight_scale" in parts and parts[".weight_scale"].shape else 1
    scales = expect(stem, parts, ".weight_scale", ("BF16", "F16", "F32"), (rows, count))
    block = groups(stem, cols, scales)
    has_zeros = ".weight_zero_point" in parts
    if block % 32 and not (block == 16 and not has_zeros):
        raise damaged(scales.name, f"groups of {block} columns are not supported")
    if has_zeros:
        expect(stem, parts, ".weight_zero_point", ("I32",), (-(-rows // 8), count))
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(stem, parts, ".bias", rows)
    return Layout(
        stem, Format.INT4, rows, cols, ".weight_packed", cols // 2,
        ".weight_scale", SCALE_TYPES[scales.dtype], count * size, size, 1, block,
        ".weight_zero_point" if has_zeros else None, count * 4, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip
