"""F32, F16 and BF16: one tensor `weight` [out, in], as safetensors stores it."""

from engine.kernels.weights import Format
from engine.quant.layout import Layout, Parts, bias_of, expect

FORMATS = {"F32": (Format.F32, 4), "F16": (Format.F16, 2), "BF16": (Format.BF16, 2)}


def recognises(parts: Parts) -> bool:
    return ".weight" in parts and parts[".weight"].dtype in FORMATS


def describe(stem: str, parts: Parts) -> Layout:
    ref = parts[".weight"]
    rows, cols = ref.shape[-2:] if len(ref.shape) >= 2 else (0, 0)
    expect(stem, parts, ".weight", tuple(FORMATS), (*ref.shape[:-2], rows, cols))
    kind, size = FORMATS[ref.dtype]
    bias, bias_dtype = bias_of(stem, parts, ".bias", rows)
    return Layout(stem, kind, rows, cols, ".weight", cols * size, bias=bias, bias_dtype=bias_dtype)
