"""AWQ, 4 bits: `qweight` I32 [in, out / 8], `scales` F16 [groups, out], `qzeros` I32 [groups, out / 8]; a word's eight rows
lie in the order 0 2 4 6 1 3 5 7 from the lowest nibble. Source: AutoAWQ's WQLinear_GEMM."""

from engine.kernels.weights import Format
from engine.quant.layout import SCALE_TYPES, DamagedError, Layout, Parts, bias_of, expect, groups, matrix_of


def recognises(parts: Parts) -> bool:
    """GPTQ packs along the other axis: there [in / 8, out] is wider than the zero points."""
    return {".qweight", ".qzeros"} <= parts.keys() and parts[".qweight"].shape[-1:] == parts[".qzeros"].shape[-1:]


def describe(stem: str, parts: Parts) -> Layout:
    cols, words = matrix_of(parts, ".qweight", "[in, out / 8]")
    rows = words * 8
    count = parts[".scales"].shape[0] if ".scales" in parts and parts[".scales"].shape else 1
    expect(parts, ".qweight", ("I32",), (cols, words))
    scales = expect(parts, ".scales", ("F16", "BF16", "F32"), (count, rows))
    expect(parts, ".qzeros", ("I32",), (count, words))
    block = groups(cols, count, scales)
    if block % 32:
        raise DamagedError(scales, f"groups of {block} columns are not supported")
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return Layout(
        stem, Format.INT4_AWQ, rows, cols, ".qweight", rows // 2,
        ".scales", SCALE_TYPES[scales.dtype], size, rows * size, 1, block,
        ".qzeros", rows // 8 * 4, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip
