"""Descriptors of experts that lie anywhere, as the device's own cache takes them."""

from collections.abc import Sequence

import torch

from engine.kernels.gpu.cache import Described
from engine.kernels.gpu.kernels import words_of
from engine.kernels.gpu.shape import POINTERS, WORDS, shape_at
from engine.kernels.native import ExpertTable


def describe(tables: Sequence[tuple[ExpertTable, int, int]], stride: int) -> Described:
    """Of each expert a table that has it, its slot there, and where that slot of `stride` bytes begins.

    Raises `AssertionError` for experts that these kernels do not read: see `shape_at`.
    """
    rows, inside = [], []
    for table, slot, start in tables:
        words = words_of(table, torch.device("cpu")).cpu()[slot]
        own = torch.zeros(WORDS, dtype=torch.int64)
        own[list(POINTERS)] = 1
        own &= (words >= start) & (words < start + stride)
        rows.append(words - own * start)
        inside.append(own)
    entry = tables[0][0].entries[tables[0][1]]
    up, down = shape_at(entry.up), shape_at(entry.down)
    assert up is not None, "experts that the kernels read"
    assert down is not None, "experts that the kernels read"
    return Described(torch.stack(rows), torch.stack(inside), up, down)
