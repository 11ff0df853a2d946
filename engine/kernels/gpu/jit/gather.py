"""Experts from memory that the device reads over its link into slots, named by lists on the device: no host in between.

Sources are registered memory of the host or the device's own. Slots and sources are aligned to 16 bytes, `nbytes` is whole
vectors of that.
"""

import triton
import triton.language as tl

from engine.kernels.gpu import shape

_WORDS = tl.constexpr(shape.WORDS)


@triton.jit
def gather(
    sources, targets, moved_experts, moved_slots, num_moved, relative, is_inside, words, nbytes,
    CHUNK: tl.constexpr, WORDS_TILE: tl.constexpr,
):  # fmt: skip
    """Copies expert moved_experts[j] at sources int64 [E] to slot moved_slots[j] at targets int64 [N], for j < num_moved [1],
    and writes its descriptor: words int64 [N, W] of relative [E, W], which count from the slot's start where is_inside [E, W].

    Any number of programs share the chunks, CHUNK * 8 bytes each.
    """
    chunks = tl.cdiv(nbytes, CHUNK * 8)
    for work in range(tl.program_id(0), tl.load(num_moved) * chunks, tl.num_programs(0)):
        move, chunk = work // chunks, work % chunks
        expert, slot = tl.load(moved_experts + move).to(tl.int64), tl.load(moved_slots + move).to(tl.int64)
        target = tl.load(targets + slot)
        places = chunk * CHUNK + tl.arange(0, CHUNK)
        inside = places < nbytes // 8
        source = tl.multiple_of(tl.load(sources + expert).to(tl.pointer_type(tl.int64)), 16)
        values = tl.load(source + places, mask=inside, cache_modifier=".cg")
        tl.store(tl.multiple_of(target.to(tl.pointer_type(tl.int64)), 16) + places, values, mask=inside)
        if chunk == 0:
            parts = tl.arange(0, WORDS_TILE)
            known = parts < _WORDS
            start = tl.load(is_inside + expert * _WORDS + parts, mask=known, other=0) * target
            tl.store(words + slot * _WORDS + parts, tl.load(relative + expert * _WORDS + parts, mask=known) + start, mask=known)
