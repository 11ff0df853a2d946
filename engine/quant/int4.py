"""compressed-tensors `pack-quantized`, 4 bits: `weight_packed` I32 [out, in / 8], the lowest nibble first, each code plus 8;
`weight_scale` [out, groups] BF16, F16 or F32; asymmetric ones add `weight_zero_point` I32 [out / 8, groups], packed along out.
`weight_shape` I64 [2] repeats the matrix's shape. `weight_g_idx` says that columns were reordered (actorder "group"): refused,
unless it names the groups in their order, since the columns of a group are then scattered.
"""

from engine.kernels.weights import Format
from engine.quant.layout import SCALE_TYPES, DamagedError, Layout, Parts, bias_of, expect, groups, matrix_of, optional


def recognises(parts: Parts) -> bool:
    return ".weight_packed" in parts and parts[".weight_packed"].dtype == "I32"


def describe(stem: str, parts: Parts) -> Layout:
    rows, width = matrix_of(parts, ".weight_packed", "[out, in / 8]")
    cols = width * 8
    count = parts[".weight_scale"].shape[-1] if ".weight_scale" in parts and parts[".weight_scale"].shape else 1
    scales = expect(parts, ".weight_scale", ("BF16", "F16", "F32"), (rows, count))
    block = groups(cols, count, scales)
    has_zeros = ".weight_zero_point" in parts
    if block % 32 and not (block == 16 and not has_zeros):
        raise DamagedError(scales, f"groups of {block} columns are not supported")
    if has_zeros:
        expect(parts, ".weight_zero_point", ("I32",), (-(-rows // 8), count))
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return Layout(
        stem, Format.INT4, rows, cols, ".weight_packed", cols // 2,
        ".weight_scale", SCALE_TYPES[scales.dtype], count * size, size, 1, block,
        ".weight_zero_point" if has_zeros else None, count * 4, bias=bias, bias_dtype=bias_dtype,
        order=optional(parts, ".weight_g_idx", ("I32",), (cols,)), declared=optional(parts, ".weight_shape", ("I64",), (2,)),
    )  # fmt: skip
