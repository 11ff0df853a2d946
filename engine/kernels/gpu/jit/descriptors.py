"""Where the parts of a slot's matrices lie, read from the descriptors on the device; activations. See `engine.kernels.abi`."""

import triton
import triton.language as tl

from engine.kernels.gpu import shape
from engine.kernels.gpu.jit import dequant

_DATA = tl.constexpr(shape.DATA)
_SCALES = tl.constexpr(shape.SCALES)
_ZEROS = tl.constexpr(shape.ZEROS)
_BIAS = tl.constexpr(shape.BIAS)
_GLOBAL_WORD = tl.constexpr(shape.GLOBAL_WORD)
_GLOBAL_SHIFT = tl.constexpr(8 * shape.GLOBAL_BYTE)


@triton.jit
def matrix_at(words):
    """(data, scales, zeros, bias) as addresses and the global scale, of the matrix whose descriptor begins at `words`."""
    factor = (tl.load(words + _GLOBAL_WORD) >> _GLOBAL_SHIFT).to(tl.int32).to(tl.float32, bitcast=True)
    return tl.load(words + _DATA), tl.load(words + _SCALES), tl.load(words + _ZEROS), tl.load(words + _BIAS), factor


@triton.jit
def is_aligned(data, scales):
    return (data | scales) % 8 == 0


@triton.jit
def bias_of(bias, rows, num_rows, step, F: tl.constexpr):
    """fp32 [rows]."""
    return dequant.number(bias, rows * step, rows < num_rows, F.bias, False)


@triton.jit
def activated(gate, up, alpha, limit, KIND: tl.constexpr):
    """See `engine.kernels.reference.activate`; without a gate `gate` is not looked at."""
    if KIND == "RELU2":
        positive = tl.maximum(up, 0.0)
        return positive * positive
    elif KIND == "GPT_OSS":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        return (up + 1.0) * gate * tl.sigmoid(alpha * gate)
    elif KIND == "GELU_TANH":
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate * tl.sigmoid(2.0 * inner) * up  # (1 + tanh(z)) / 2 is sigmoid(2 z)
    else:
        if KIND == "SILU_CLAMPED":
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit)
        return gate * tl.sigmoid(gate) * up


@triton.jit
def parted(rows, num_rows, PARTED: tl.constexpr):
    """Where numbers go of which the even ones come before the odd ones."""
    if PARTED:
        return rows // 2 + rows % 2 * (num_rows // 2)
    else:
        return rows
