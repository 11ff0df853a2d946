"""The weighted sum of a token's experts, in routing order, so that it does not show where an expert lay."""

import triton
import triton.language as tl


@triton.jit
def combine(outputs, weights, y, hidden, top_k, WIDTH: tl.constexpr):
    """y [T, H] of outputs [T, k, H] and weights [T, k]; grid (blocks of columns, T)."""
    token = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < hidden
    total = tl.zeros((WIDTH,), tl.float32)
    for rank in range(top_k):
        pair = token * top_k + rank
        total += tl.load(weights + pair) * tl.load(outputs + pair * hidden + columns, mask=inside, other=0.0)
    tl.store(y + token * hidden + columns, total, mask=inside)
