"""Attention of a layer by torch's operations, on any device. Shapes as in `Kernels.attention`."""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from engine.kernels.kept import numbers

_LOGIT_BYTES = 256 << 20  # of one block of queries
_WIDEST_HEAD = 256  # that torch's fused attention takes


def attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None,
    softcap: float,
    operands: torch.dtype,
    row: torch.Tensor | None = None,
) -> torch.Tensor:
    """fp32 [T, Hq, Dv]. Several tokens are mixed in the type `operands` where torch has one call for them; else in fp32."""
    tokens, dim = q.shape[0], q.shape[2]
    keys, values = numbers(keys), numbers(values)
    is_plain = sinks is None and not softcap and window is None and keys.shape[2] == values.shape[2] and dim <= _WIDEST_HEAD
    if tokens > 1 and is_plain:
        return _fused(q.to(operands), keys.to(operands), values.to(operands), scale)
    heads, length = q.shape[1], keys.shape[1]
    keys, values = keys.to(q.dtype), values.to(q.dtype)
    at_once = max(1, _LOGIT_BYTES // (heads * length * 4))
    blocks = [
        _block(q[first : first + at_once], keys, values, length - tokens + first, scale, window, sinks, softcap, row)
        for first in range(0, tokens, at_once)
    ]
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks)


def _fused(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    mask = causal_lower_right(q.shape[0], keys.shape[1])
    is_grouped = q.shape[1] != keys.shape[0]
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, scale=scale, enable_gqa=is_grouped
    )
    return mixed[0].transpose(0, 1).float()


def _block(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    scale: float,
    window: int | None,
    sinks: torch.Tensor | None,
    softcap: float,
    row: torch.Tensor | None,
) -> torch.Tensor:
    """Queries [T, Hq, D] at the positions from `start` on, or one at `row`."""
    tokens, heads, dim = q.shape
    groups, length, _ = keys.shape
    together = heads // groups
    by_group = q.view(tokens, groups, together, dim).permute(1, 2, 0, 3).reshape(groups, together * tokens, dim)
    logits = (by_group @ keys.mT * scale).view(heads, tokens, length)
    if softcap:
        logits = (logits / softcap).tanh() * softcap
    if tokens > 1 or window is not None or row is not None:
        position = (torch.arange(start, start + tokens, device=q.device) if row is None else row)[:, None]
        seen = torch.arange(length, device=q.device)[None, :]
        outside = seen > position if window is None else (seen > position) | (seen <= position - window)
        logits = logits.masked_fill(outside, float("-inf"))
    if sinks is not None:
        logits = torch.cat((logits, sinks[:, None, None].expand(-1, tokens, 1)), dim=-1)
    shares = logits.softmax(dim=-1)[..., :length].reshape(groups, together * tokens, length)
    return (shares @ values).view(heads, tokens, -1).transpose(0, 1)
