"""Pairs of (token, rank) sorted by slot, in blocks of one slot each. Fixed shapes and no look at the result: no host waits."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Blocks:
    """`order` int32 [P] has the pair of each sorted position. By block, int32: its slot, -1 for none; its first position and
    the one behind its last."""

    order: torch.Tensor
    slots: torch.Tensor
    firsts: torch.Tensor
    ends: torch.Tensor


def sort_by_slot(slots: torch.Tensor, num_slots: int, size: int) -> Blocks:
    """Of slots int32 [T, k], -1 for pairs of another call, blocks of at most `size` pairs."""
    flat = slots.flatten().long()
    order = flat.argsort(stable=True)
    counts = torch.zeros(num_slots + 1, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat + 1, torch.ones_like(flat))
    ends = counts.cumsum(0)  # of each slot's pairs, behind those of none
    counts[0] = 0
    last_blocks = ((counts + size - 1) // size).cumsum(0)
    most = -(-len(flat) // size) + min(num_slots, len(flat))
    blocks = torch.arange(most, device=flat.device)
    bins = torch.searchsorted(last_blocks, blocks, right=True)
    is_block = bins <= num_slots
    bins = bins.clamp(max=num_slots)
    within = blocks - (last_blocks[bins] - (counts[bins] + size - 1) // size)
    firsts = ends[bins] - counts[bins] + within * size
    block_slots = torch.where(is_block, bins - 1, -1)
    return Blocks(order.int(), block_slots.int(), firsts.int(), torch.minimum(firsts + size, ends[bins]).int())
