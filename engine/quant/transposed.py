"""F32, F16 and BF16 stored [in, out], as gpt-oss and Llama 4 keep fused experts in plain types; the bias is `_bias` [out]."""

from engine.quant.layout import Layout, Parts, bias_of, matrix_of
from engine.quant.plain import FORMATS, recognises

__all__ = ["describe", "recognises"]


def describe(stem: str, parts: Parts) -> Layout:
    cols, rows = matrix_of(parts, ".weight", "[in, out]")
    kind, size = FORMATS[parts[".weight"].dtype]
    bias, bias_dtype = bias_of(parts, "_bias", rows)
    return Layout(stem, kind, rows, cols, ".weight", rows * size, bias=bias, bias_dtype=bias_dtype, element_step=1)
