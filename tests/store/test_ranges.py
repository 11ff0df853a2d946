"""Ranges against a set of single bytes."""

from itertools import pairwise
from random import Random

import pytest

from engine.store.ranges import Ranges


@pytest.mark.parametrize("seed", range(20))
def test_as_a_set_of_bytes(seed: int) -> None:
    random, size = Random(seed), 60
    ranges, there = Ranges(), set[int]()
    for _ in range(25):
        first = random.randrange(size)
        end = min(size, first + random.randrange(8))
        ranges.add(first, end)
        there |= set(range(first, end))
        assert {byte for begin, stop in ranges for byte in range(begin, stop)} == there
        assert ranges.nbytes == len(there)
        assert {byte for begin, stop in ranges.missing(size) for byte in range(begin, stop)} == set(range(size)) - there
        spans = list(ranges)
        assert all(before[1] < after[0] for before, after in pairwise(spans)), "merged where they touch"
        for offset in range(size):
            assert ranges.end_of(offset) == next(byte for byte in range(offset, size + 1) if byte not in there)
