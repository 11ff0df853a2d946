"""How the numbers of a row of keys or values are kept: fp32, bf16, or as `q8`. Knows tensors, no positions and no model.

q8 is uint8 rows of blocks of 32 numbers, the last one shorter: a bf16 scale, which is the block's largest number over 127
rounded up, and int8 codes. So the first numbers of a row are the first bytes of its row.
"""

import torch
import torch.nn.functional as F

from engine.config import KvType
from engine.kernels.spec import Start

_BLOCK, _SCALE = 32, 2
DTYPES = {KvType.FP32: torch.float32, KvType.BF16: torch.bfloat16, KvType.Q8: torch.uint8}
_LEAST = 1e-37  # a block whose scale would be smaller is zeros


def width(dtype: torch.dtype, dim: int) -> int:
    """Elements of that type in a row of `dim` numbers."""
    return dim + _SCALE * -(-dim // _BLOCK) if dtype == torch.uint8 else dim


def dim_of(rows: torch.Tensor) -> int:
    """Numbers in each row: the inverse of `width`."""
    elements = rows.shape[-1]
    return elements - _SCALE * -(-elements // (_BLOCK + _SCALE)) if rows.dtype == torch.uint8 else elements


def first(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """The first `dim` numbers of each row, in place."""
    return rows[..., : width(rows.dtype, dim)]


def keep(rows: torch.Tensor, start: Start, x: torch.Tensor) -> None:
    """Write x fp32 [T, H, D] as the rows from `start` on of rows [H, S, ...]."""
    x = x.transpose(0, 1)
    kept = _encoded(x) if rows.dtype == torch.uint8 else x
    if isinstance(start, int):
        rows[:, start : start + x.shape[1]] = kept
    else:
        rows.index_copy_(1, start, kept.to(rows.dtype))


def upto(rows: torch.Tensor, start: Start, count: int) -> torch.Tensor:
    """Those that the last of `count` tokens from `start` on sees, or may see."""
    return rows[:, : start + count] if isinstance(start, int) else rows


def row_of(start: Start) -> torch.Tensor | None:
    """For `Kernels.attention`."""
    return None if isinstance(start, int) else start


def numbers(rows: torch.Tensor) -> torch.Tensor:
    """What rows [..., E] mean: [..., D], fp32 of q8 and else of the rows' own type."""
    return _decoded(rows) if rows.dtype == torch.uint8 else rows


def _encoded(x: torch.Tensor) -> torch.Tensor:
    dim = x.shape[-1]
    blocks = _blocks(x, _BLOCK)  # [..., B, 32]
    most = blocks.abs().amax(-1, keepdim=True).float() / 127
    bits = torch.where(most < _LEAST, 0, (most.view(torch.int32) + 0xFFFF) >> 16).to(torch.int16)
    scales = bits.view(torch.bfloat16)  # [..., B, 1]
    codes = (blocks * torch.where(bits == 0, 0, 1 / scales.float())).round().nan_to_num(0).to(torch.int8)
    rows = torch.cat((scales.view(torch.uint8), codes.view(torch.uint8)), dim=-1).flatten(-2)
    return rows[..., : width(torch.uint8, dim)]


def _decoded(rows: torch.Tensor) -> torch.Tensor:
    dim = dim_of(rows)
    blocks = _blocks(rows, _SCALE + _BLOCK)
    scales = blocks[..., :_SCALE].contiguous().view(torch.bfloat16).float()
    codes = blocks[..., _SCALE:].contiguous().view(torch.int8)
    return torch.flatten(codes * scales, -2)[..., :dim]


def _blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """[..., E] to [..., B, size], with zeros at the end."""
    padded = F.pad(x, (0, -x.shape[-1] % size))
    return padded.view(*x.shape[:-1], -1, size)
