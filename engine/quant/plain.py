"""F32, F16 and BF16: one tensor `weight` [out, in], as safetensors stores it; fused experts have it without the suffix."""

from engine.kernels.weights import Format
from engine.quant.layout import Layout, Parts, bias_of, matrix_of

FORMATS = {"F32": (Format.F32, 4), "F16": (Format.F16, 2), "BF16": (Format.BF16, 2)}


def recognises(parts: Parts) -> bool:
    return ".weight" in parts and parts[".weight"].dtype in FORMATS


def describe(stem: str, parts: Parts) -> Layout:
    rows, cols = matrix_of(parts, ".weight")
    kind, size = FORMATS[parts[".weight"].dtype]
    bias, bias_dtype = bias_of(parts, "_bias" if "_bias" in parts else ".bias", rows)
    return Layout(stem, kind, rows, cols, ".weight", cols * size, bias=bias, bias_dtype=bias_dtype)
