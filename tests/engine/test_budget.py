"""Slots under memory pressure, against a system that is made up: who gives back how much, when, and that it is really free."""

import sys
import threading
from dataclasses import dataclass

import psutil
import pytest

from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.policy import Heat
from engine.tiers.arena import RamArena

MB = 1 << 20
SLOTS, RESERVE, LEAST = 64, 256 * MB, 8


@dataclass
class System:
    room: int = 1 << 34
    now: float = 0.0


@pytest.fixture
def system() -> System:
    return System()


@pytest.fixture
def arena() -> RamArena:
    return RamArena(16 * MB, SLOTS)


@pytest.fixture
def budget(system: System, arena: RamArena) -> SlotBudget:
    cache = ExpertCache([0], [SLOTS], Heat([0], 100), LEAST)
    return SlotBudget(cache, arena, LEAST, RESERVE, lambda: system.room, lambda: system.now)


def look(budget: SlotBudget, system: System, room: int, seconds: float = 1.0) -> int:
    system.room, system.now = room, system.now + seconds
    assert budget.is_due()
    budget.adjust()
    return budget.num_slots


def test_what_is_missing_is_given_back_and_no_more(budget: SlotBudget, system: System) -> None:
    assert look(budget, system, RESERVE) == SLOTS
    assert look(budget, system, RESERVE - 512 * MB) == SLOTS - 32
    assert look(budget, system, RESERVE - MB) == SLOTS - 40, "at least 128 MB at a time"
    assert look(budget, system, 0) == SLOTS - 56
    assert look(budget, system, 0) == LEAST, "the least that runs stays, whatever the system says"


def test_it_is_taken_again_late_and_by_halves(budget: SlotBudget, system: System) -> None:
    look(budget, system, RESERVE - 640 * MB)
    assert look(budget, system, RESERVE + 640 * MB) == SLOTS - 40, "whoever gave memory back may want it again"
    assert look(budget, system, RESERVE + 640 * MB, seconds=10) == SLOTS - 20
    assert look(budget, system, RESERVE + 200 * MB, seconds=10) == SLOTS - 20, "that would be given back at once"
    assert look(budget, system, 1 << 34, seconds=10) == SLOTS


def test_two_looks_in_a_row_cost_one(budget: SlotBudget, system: System) -> None:
    look(budget, system, 0)
    assert not budget.is_due()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux takes single pages back")
def test_what_is_given_back_is_free_and_the_rest_is_kept(arena: RamArena) -> None:
    for slot in range(SLOTS):
        arena.tensor(slot).fill_(slot + 1)
    arena.give_back(20)
    assert [arena.tensor(slot)[123].item() for slot in range(20)] == list(range(1, 21))
    assert not any(arena.tensor(slot).any() for slot in range(20, SLOTS)), "the system has the pages, new ones are zeros"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a call for it")
def test_populated_slots_are_touched_and_keep_their_content() -> None:
    arena = RamArena(1 << 20, 48)
    arena.memory(40)[:4] = b"here"
    before = psutil.Process().memory_info().rss
    arena.populate()
    for thread in threading.enumerate():
        if thread.name == "populate":
            thread.join()
    assert psutil.Process().memory_info().rss - before > 40 << 20
    assert bytes(arena.memory(40)[:4]) == b"here"
    arena.give_back(0)
    assert bytes(arena.memory(40)[:4]) == bytes(4)
