"""AWQ, 4 bits: `qweight` I32 [in, out / 8], `scales` F16 [groups, out], `qzeros` I32 [groups, out / 8]; a word's eight rows
lie in the order 0 2 4 6 1 3 5 7 from the lowest nibble. Source: AutoAWQ's WQLinear_GEMM."""

from dataclasses import replace

from engine.kernels.weights import Format
from engine.quant.layout import SCALE_TYPES, Layout, Parts, bias_of, damaged, expect, groups


def recognises(parts: Parts) -> bool:
    if not {".qweight", ".qzeros", ".scales"} <= parts.keys():
        return False
    return parts[".qweight"].shape[-1:] == parts[".qzeros"].shape[-1:]


def describe(stem: str, parts: Parts) -> Layout:
    codes = parts[".qweight"]
    if len(codes.shape) != 2 or codes.shape[0] % 32:
        raise damaged(codes.name, f"its shape is {list(codes.shape)} where [in, out / 8] belongs")
    rows, cols = codes.shape[1] * 8, codes.shape[0]
    count = parts[".scales"].shape[0] if parts[".scales"].shape else 1
    expect(stem, parts, ".qweight", ("I32",), codes.shape)
    scales = expect(stem, parts, ".scales", ("F16", "BF16", "F32"), (count, rows))
    expect(stem, parts, ".qzeros", ("I32",), (count, rows // 8))
    block = groups(stem, cols, replace(scales, shape=(rows, count)))
    if block % 32:
        raise damaged(scales.name, f"groups of {block} columns are not supported")
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(stem, parts, ".bias", rows)
    return Layout(
        stem, Format.INT4_AWQ, rows, cols, ".qweight", rows // 2,
        ".scales", SCALE_TYPES[scales.dtype], size, rows * size, 1, block,
        ".qzeros", rows // 8 * 4, bias=bias, bias_dtype=bias_dtype,
    )  # fmt: skip
