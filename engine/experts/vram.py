"""The experts that one device's memory holds: which, where, and how they come there. Knows slots, no lanes."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from engine.experts.bind import ExpertBinder
from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.policy import Expert, Heat
from engine.experts.table import DeviceTable
from engine.kernels.kernels import Kernels
from engine.plan.footprint import card_guests
from engine.plan.plan import LEAST_CARD_SLOTS
from engine.tiers.copy import Accelerator, Copy, DeviceLost
from engine.tiers.vram import VramArena

_CANARIES = 4  # experts that are compared byte by byte when a model is loaded


@dataclass(frozen=True)
class Device:
    """A device that works, with the kernels that run there."""

    accelerator: Accelerator
    kernels: Kernels

    @property
    def device(self) -> torch.device:
        return self.accelerator.device


class _Room:
    """The arena as its budget knows it: whatever refers to slots that go is let go of before."""

    def __init__(self, arena: VramArena, table: DeviceTable) -> None:
        self._arena, self._table = arena, table
        self.stride, self.num_slots = arena.stride, arena.num_slots

    def give_back(self, first: int) -> None:
        self._table.forget(first)
        self._arena.give_back(first)

    def take_back(self, count: int) -> int:
        return self._arena.take_back(count)


@dataclass(eq=False)
class VramTier:
    """A device with its own kernels, slots and policy. `accelerator.device` holds the slots; x must be there too."""

    accelerator: Accelerator
    kernels: Kernels
    arena: VramArena
    policy: Heat
    cache: ExpertCache
    table: DeviceTable
    budget: SlotBudget
    own: Collection[Expert]  # those that belong to this device
    wanted: Sequence[Expert] = ()  # of the layer at work, those that are this device's
    hits: dict[Expert, int] = field(default_factory=dict)  # of them, with their slots
    ceded: dict[Expert, int] = field(default_factory=dict)  # in slots that the device fills by itself: see `Gathered.look`

    @classmethod
    def open(
        cls,
        device: Device,
        binder: ExpertBinder,
        layers: Sequence[int],
        num_experts: int,
        slot_bytes: int,
        num_slots: int,
        top_k: int,
        reserve_bytes: int,
    ) -> "VramTier":
        """Takes the memory. Raises `EngineError` and `DeviceLost`."""
        accelerator = device.accelerator
        arena = VramArena(accelerator, slot_bytes, num_slots)
        guests = card_guests(arena.num_slots, top_k)
        policy = Heat(layers, num_experts)
        cache = ExpertCache(layers, [arena.num_slots], policy, guests)
        table = DeviceTable(arena, binder, accelerator.device)
        least = min(guests + 1, LEAST_CARD_SLOTS)
        budget = SlotBudget(cache, _Room(arena, table), least, reserve_bytes, accelerator.free_bytes)
        own = frozenset((layer, expert) for layer in layers for expert in range(num_experts))
        return cls(accelerator, device.kernels, arena, policy, cache, table, budget, own)

    @property
    def most_kept(self) -> int:
        """Experts that stay: with a slot for each of its own no other passes through."""
        slots = self.budget.num_slots
        return slots if slots >= len(self.own) else self.cache.member_slots

    def slot_of(self, expert: Expert) -> int | None:
        slot = self.cache.lookup(*expert)
        return self.ceded.get(expert) if slot is None else slot

    def look_up(self, wanted: Sequence[Expert]) -> None:
        """Which of these it holds, and where."""
        self.wanted = wanted
        self.hits = {expert: slot for expert in wanted if (slot := self.slot_of(expert)) is not None}

    def claim(self, experts: Sequence[Expert], keep: Collection[Expert]) -> dict[Expert, int]:
        """Slots for the first of these experts, as many as can be had without a hit or one of `keep` leaving."""
        slots: dict[Expert, int] = {}
        for expert in experts:
            slot = self.cache.claim({*self.hits, *keep})
            if slot is None:
                break
            slots[expert] = slot
        return slots

    def bring(self, slots: dict[Expert, int], sources: Sequence[torch.Tensor]) -> Copy:
        """Start experts from RAM into claimed slots. They count as resident at once, so order what uses them behind it."""
        copy = self.accelerator.copy(
            [(source, self.arena.tensor(slot)) for source, slot in zip(sources, slots.values(), strict=True)]
        )
        for expert, slot in slots.items():
            self.cache.commit(*expert, slot)
            self.table.bind(slot, expert)
        return copy

    def check_link(self, sources: Sequence[torch.Tensor]) -> None:
        """Sends bytes there and back. Raises `DeviceLost` where they come back changed."""
        for source in random.Random(0).sample(list(sources), min(_CANARIES, len(sources))):
            slot = self.arena.tensor(0)
            self.accelerator.copy([(source, slot)]).finish()
            if not torch.equal(slot.cpu(), source):
                raise DeviceLost(f"{self.accelerator.name} gives back other bytes than it was sent")
