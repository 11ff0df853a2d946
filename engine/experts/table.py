"""Binds experts to slots at the price of moving their addresses. Knows the descriptors' addresses, not what else is in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.experts.bind import ExpertBinder, Matrices
from engine.experts.policy import Expert
from engine.kernels.gpu.cache import Described
from engine.kernels.gpu.shape import shape_at
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable


class Slots(Protocol):
    """An arena, of RAM or of a device's memory."""

    stride: int
    num_slots: int

    def tensor(self, slot: int) -> torch.Tensor: ...

    def address(self, slot: int) -> int: ...


@dataclass(frozen=True, slots=True)
class _Bound:
    """Descriptors as int64 words: those that point into the slot are relative to its start, and 1 in `is_inside`.

    `held` keeps what else is pointed to, and nothing of the slot, whose memory may go.
    """

    words: torch.Tensor
    is_inside: torch.Tensor
    held: Sequence[torch.Tensor]


class SlotTable(ExpertTable):
    """An expert looks the same in every slot but for its addresses, so that it is taken apart and checked once; and like any
    other whose parts lie alike."""

    def __init__(self, arena: Slots, binder: ExpertBinder, kernels: Kernels | None) -> None:
        """Without kernels nobody looks at the contents: they have been looked at in another arena."""
        super().__init__(arena.num_slots)
        self._arena, self._binder, self._kernels = arena, binder, kernels
        self._words = torch.frombuffer(self.entries, dtype=torch.int64).view(arena.num_slots, -1)
        self._bound: dict[Expert, _Bound] = {}
        self._alike: dict[tuple[int, ...], _Bound] = {}  # by where an expert's parts lie in its slot
        self._experts: list[Expert | None] = [None] * arena.num_slots

    def bind(self, slot: int, expert: Expert) -> None:
        """Its bytes are in the slot. Raises `EngineError` where no kernel can use them."""
        self._experts[slot] = expert
        known = self._bound.get(expert)
        if known is None:
            self._bind_first(slot, expert)
        else:
            self._place(slot, known)

    def _place(self, slot: int, bound: _Bound) -> None:
        torch.add(bound.words, bound.is_inside, alpha=self._arena.address(slot), out=self._words[slot])
        self._held[slot] = None

    def get(self, slot: int) -> Matrices:
        """For kernels that take tensors."""
        if self._held[slot] is None:
            expert = self._experts[slot]
            assert expert is not None, f"slot {slot} holds no expert"
            self._held[slot] = self._binder.bind(*expert, self._arena.tensor(slot))
        return super().get(slot)

    def _bind_first(self, slot: int, expert: Expert) -> None:
        """Its contents are looked at too; files do not change."""
        places = self._binder.places(*expert)
        bound = None if places is None else self._alike.get(places)
        if bound is not None:
            self._place(slot, bound)
        else:
            bound = self._take_apart(slot, expert)
            if places is not None and not bound.held:
                self._alike[places] = bound
        if self._kernels is not None:
            self._binder.check(*expert, self._arena.tensor(slot), self, slot, self._kernels)
        self._bound[expert] = bound

    def _take_apart(self, slot: int, expert: Expert) -> _Bound:
        matrices = self._binder.bind(*expert, self._arena.tensor(slot))
        self.set(slot, *matrices)
        first = self._arena.address(slot)
        words = self._words[slot]
        is_inside = ((words >= first) & (words < first + self._arena.stride)).long()
        tensors = [part for one in matrices if one for part in (one.data, one.scales, one.zeros, one.bias) if part is not None]
        apart = [tensor for tensor in tensors if not first <= tensor.data_ptr() < first + self._arena.stride]
        return _Bound(words - is_inside * first, is_inside, apart)


class DeviceTable(SlotTable):
    """The same for the kernels of a device: `words` int64 [slots, W] there are the descriptors, with the device's addresses."""

    def __init__(self, arena: Slots, binder: ExpertBinder, device: torch.device) -> None:
        super().__init__(arena, binder, None)
        self.words: torch.Tensor = torch.zeros_like(self._words, device=device)

    def bind(self, slot: int, expert: Expert) -> None:
        super().bind(slot, expert)
        self.words[slot].copy_(self._words[slot], non_blocking=True)

    def forget(self, first: int) -> None:
        """No tensor lies in the slots from `first` on any more: a single one would keep the memory of many slots."""
        for slot in range(first, len(self)):
            self._experts[slot] = self._held[slot] = None

    def adopt(self, held: Mapping[Expert, int], words: torch.Tensor, slots: Sequence[int]) -> None:
        """The device has put these experts there by itself: `words` [S, W] on it are the descriptors of all `slots` [S]."""
        for expert, slot in held.items():
            self._experts[slot], self._held[slot] = expert, None
        self.words[torch.tensor(slots, device=self.words.device)] = words

    def described(self, experts: Sequence[Expert]) -> Described:
        """Of experts whether they are there or not. One is there at least, whose shapes the kernels read."""
        bound = [self._known(expert) for expert in experts]
        entry = next(entry for entry in self.entries if entry.up.rows)
        up, down = shape_at(entry.up), shape_at(entry.down)
        assert up is not None, "experts that the kernels read"
        assert down is not None, "experts that the kernels read"
        return Described(torch.stack([one.words for one in bound]), torch.stack([one.is_inside for one in bound]), up, down)

    def words_in(self, slot: int, expert: Expert) -> torch.Tensor:
        """The descriptor [W] of an expert in that slot, in the host's memory."""
        bound = self._known(expert)
        return bound.words + bound.is_inside * self._arena.address(slot)

    def _known(self, expert: Expert) -> _Bound:
        if expert not in self._bound:
            before = self._experts[0]
            self._bind_first(0, expert)
            if before is not None:
                super().bind(0, before)
        return self._bound[expert]
