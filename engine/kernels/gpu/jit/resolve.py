"""Which slot each routed expert has, and which slots those get that have none: decided on the device, without the host.

Least recently used, among the slots of one range; what this step uses never leaves. Everything has a fixed shape.
"""

import triton
import triton.language as tl

_NEVER = tl.constexpr(9223372036854775807)


@triton.jit
def resolve(
    ids, slots, slot_of, expert_of, stamps, clock, moved_experts, moved_slots, num_moved, counters,
    first_expert, first_slot, num_slots, num_pairs, PAIRS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """One program. ids int32 [P] count from `first_expert` in slot_of int32 [E]; the range is `num_slots` from `first_slot` on
    in expert_of int32 [N] (-1 for none) and stamps int64 [N]. `clock` int64 [1] counts the steps.

    Fills slots int32 [P], -1 where no slot was left, moved_experts and moved_slots int32 [P] and num_moved int32 [1]; adds to
    counters int64 [2] the hits and misses, each expert once.
    """
    ranks = tl.arange(0, PAIRS)
    given = ranks < num_pairs
    wanted = first_expert + tl.load(ids + ranks, mask=given, other=0)  # [P]
    found = tl.load(slot_of + wanted, mask=given, other=-1)
    is_again = (wanted[:, None] == wanted[None, :]) & (ranks[None, :] < ranks[:, None]) & given[:, None]
    is_first = given & (tl.sum(is_again.to(tl.int32), axis=1) == 0)
    is_miss = is_first & (found < 0)

    now = tl.load(clock) + 1
    places = tl.arange(0, SLOTS)
    own = places < num_slots
    used = tl.load(stamps + first_slot + places, mask=own, other=_NEVER)  # [S]
    for rank in range(num_pairs):
        slot = tl.sum(tl.where(ranks == rank, found, 0), axis=0)
        used = tl.where((places == slot - first_slot) & own, now, used)

    moved = 0
    for rank in range(num_pairs):
        if tl.sum(tl.where(ranks == rank, is_miss.to(tl.int32), 0), axis=0) > 0:
            place = tl.argmin(used, axis=0)
            if tl.min(used, axis=0) < now:
                expert = tl.sum(tl.where(ranks == rank, wanted, 0), axis=0)
                victim = first_slot + place.to(tl.int32)
                before = tl.load(expert_of + victim)
                tl.debug_barrier()  # no warp may see what another has stored since
                tl.store(slot_of + before, -1, mask=before >= 0)
                tl.store(slot_of + expert, victim)
                tl.store(expert_of + victim, expert)
                tl.store(moved_experts + moved, expert)
                tl.store(moved_slots + moved, victim)
                found = tl.where((wanted == expert) & given, victim, found)
                used = tl.where(places == place, now, used)
                moved += 1

    tl.debug_barrier()
    tl.store(slots + ranks, found, mask=given)
    tl.store(stamps + first_slot + places, used, mask=own)
    tl.store(clock, now)
    tl.store(num_moved, moved)
    misses = tl.sum(is_miss.to(tl.int64), axis=0)
    tl.store(counters, tl.load(counters) + tl.sum(is_first.to(tl.int64), axis=0) - misses)
    tl.store(counters + 1, tl.load(counters + 1) + misses)
