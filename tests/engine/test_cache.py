import random
from itertools import chain

import pytest

from engine.experts.cache import ExpertCache
from engine.experts.policy import Heat
from engine.experts.replay import CacheContender

LAYERS, EXPERTS, TOP_K = 4, 16, 2


def make(num_slots: int, num_guests: int = 4) -> ExpertCache:
    layers = range(LAYERS)
    return ExpertCache(layers, [num_slots], Heat(layers, EXPERTS), num_guests)


def resident(cache: ExpertCache) -> set[tuple[int, int]]:
    return {(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS) if cache.lookup(layer, expert) is not None}


def load(cache: ExpertCache, layer: int, expert: int) -> int:
    slot = cache.claim(())
    assert slot is not None
    cache.commit(layer, expert, slot)
    return slot


@pytest.mark.parametrize(("num_slots", "num_guests"), [(1, 1), (2, 4), (5, 2), (12, 4), (40, 4), (64, 8)])
def test_whatever_happens_a_slot_holds_what_was_last_loaded_into_it(num_slots: int, num_guests: int) -> None:
    """Against a plain record of each slot's content: decode, prompts, failed reads, memory taken away and given back."""
    rng = random.Random(num_slots)
    cache, content = make(num_slots, num_guests), dict[int, tuple[int, int]]()
    retired: list[int] = []
    for _ in range(1500):
        layer, is_decode = rng.randrange(LAYERS), rng.random() < 0.7
        wanted = rng.sample(range(EXPERTS), TOP_K if is_decode else 7)
        keep = [expert for expert in wanted if cache.lookup(layer, expert) is not None]
        misses = [expert for expert in wanted if expert not in keep]
        claimed = [
            (expert, slot) for expert in misses if (slot := cache.claim([(layer, expert) for expert in keep])) is not None
        ]
        for expert in keep:
            assert content[cache.lookup(layer, expert) or 0] == (layer, expert), "an expert to keep was overwritten"
        for expert, slot in claimed:
            if rng.random() < 0.1:
                cache.abandon(slot)
                content.pop(slot, None)
            else:
                cache.commit(layer, expert, slot)
                content[slot] = layer, expert
        if is_decode:
            cache.touch(layer, wanted)
        if rng.random() < 0.02 and not retired:
            retired = rng.sample(range(num_slots), num_slots // 3)
            cache.retire(retired)
        elif retired and rng.random() < 0.1:
            absent = [(one, expert) for one in range(LAYERS) for expert in range(EXPERTS) if cache.lookup(one, expert) is None]
            filled = dict(zip(rng.sample(absent, len(absent)), rng.sample(retired, len(retired) // 2), strict=False))
            cache.restore(retired, filled)  # what somebody else has put there
            content |= {slot: expert for expert, slot in filled.items()}
            retired = []
        cache.check_integrity()
        for owner, expert in resident(cache):
            slot = cache.lookup(owner, expert)
            assert slot is not None
            assert slot not in retired
            assert content[slot] == (owner, expert)


def test_a_prompt_evicts_nothing_that_decode_holds() -> None:
    cache, rng = make(24), random.Random(1)
    contender = CacheContender(cache)
    for _ in range(50):
        for layer in range(LAYERS):
            contender.use(layer, rng.sample(range(8), TOP_K))
    before = resident(cache)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            if cache.lookup(layer, expert) is None:
                load(cache, layer, expert)
    assert len(before - resident(cache)) == 4, "only the guests' slots were used"


def test_what_a_prompt_left_behind_goes_first() -> None:
    cache = make(8)
    for expert in range(8):
        load(cache, 0, expert)
    cache.touch(0, [0, 1])
    for expert in range(8, 14):
        load(cache, 0, expert)
    assert resident(cache) == {(0, expert) for expert in (0, 1, 8, 9, 10, 11, 12, 13)}


def test_all_misses_of_a_token_get_a_slot_at_once_and_none_comes_from_its_hits() -> None:
    cache = make(8, num_guests=TOP_K)
    contender = CacheContender(cache)
    for layer in chain(range(LAYERS), range(LAYERS)):
        contender.use(layer, [0, 1])
    assert [cache.claim(((0, 0), (0, 1))) is None for _ in range(TOP_K)] == [False] * TOP_K
    assert cache.claim(((0, 0), (0, 1))) is None, "all others are members, and no decision has freed one"
    assert {(0, 0), (0, 1)} <= resident(cache)


def test_retired_slots_are_not_used_and_serve_again_when_restored() -> None:
    cache = make(12)
    contender, rng = CacheContender(cache), random.Random(3)

    def decode() -> int:
        for _ in range(20):
            for layer in range(LAYERS):
                contender.use(layer, rng.sample(range(EXPERTS), TOP_K))
        return len(resident(cache))

    assert decode() == 12
    cache.retire(range(6))
    assert decode() == 6
    cache.check_integrity()
    cache.restore(range(6))
    assert decode() == 12
    cache.check_integrity()


def test_what_others_put_into_retired_slots_is_there_when_they_are_restored() -> None:
    cache = make(12)
    load(cache, 0, 1)
    cache.retire(range(4, 12))
    cache.restore(range(4, 12), {(1, 2): 7, (0, 1): 8, (3, 3): 9})
    assert (cache.lookup(1, 2), cache.lookup(3, 3)) == (7, 9)
    assert cache.lookup(0, 1) not in (8, None), "it was there already"
    assert cache.num_resident == len(cache.residents()) == 3
    assert all(cache.claim(()) is not None for _ in range(9)), "the others are free"
    cache.check_integrity()


def test_a_slot_lost_or_used_twice_is_noticed() -> None:
    cache = make(4)
    slot = load(cache, 0, 1)
    cache._resident[1][2] = slot
    with pytest.raises(AssertionError, match="twice"):
        cache.check_integrity()
