"""A decoded token's experts where RAM holds them all and the link serves every miss: the device itself fetches what it lacks.

While it does, most of the tier's slots are its own: which expert is in which of them the host learns only when it looks.
"""

from collections.abc import Sequence
from enum import Enum, auto

import torch

from engine.experts.policy import Expert
from engine.experts.vram import VramTier
from engine.kernels.gpu.experts import DeviceExperts
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.weights import ExpertMath
from engine.tiers.arena import RamArena

_CANARIES = 4  # experts that are compared byte by byte when the device begins


class Begun(Enum):
    """What became of `Gathered.begin`."""

    RUNS = auto()
    REFUSED = auto()  # Triton does not take the kernels
    WRONG_BYTES = auto()  # the device brought others than RAM holds


class Gathered:
    """`Experts` of `engine.models.layers` from `begin` to `end`. `experts` are all, layer by layer.

    The slots that a prompt's experts pass through stay the host's. `look` before a prompt, so that the host knows the others.
    """

    def __init__(
        self,
        tier: VramTier,
        experts: Sequence[Expert],
        layers: Sequence[int],
        math: ExpertMath,
        ram: RamArena,
        top_k: int,
    ) -> None:
        self._tier, self._experts, self._layers, self._math = tier, experts, layers, math
        self._ram, self._top_k = ram, top_k
        self._numbers = {expert: number for number, expert in enumerate(experts)}
        self._own: list[int] = []  # the device's slots, in its order
        self._device_experts: DeviceExperts | None = None
        self._missed = 0

    @property
    def has_slots(self) -> bool:
        """Between `begin` and `end`."""
        return self._device_experts is not None

    @property
    def is_possible(self) -> bool:
        """With Triton, experts that its kernels read, and slots for a token's experts of every layer."""
        kernels = self._tier.kernels
        if not isinstance(kernels, DeviceKernels) or kernels.launcher is None or not kernels.reads(self._tier.table):
            return False
        return self._num_own // len(self._layers) >= self._top_k

    def begin(self, ram_slots: Sequence[int]) -> Begun:
        """Every expert is in its slot of RAM, which the device reads, and stays there. Where it does not run, the slots are the
        host's again, with fewer experts in them."""
        tier, kernels = self._tier, self._tier.kernels
        assert isinstance(kernels, DeviceKernels), "it is possible"
        described = tier.table.described(self._experts)
        held = tier.cache.residents()
        own = list(range(tier.cache.num_guests, tier.budget.num_slots))
        warmth = {expert: tier.policy.warmth(expert) for expert in held}
        self._own, order = _shares(self._layers, own, {slot: expert for expert, slot in held.items()}, warmth)
        device_experts = DeviceExperts(
            kernels, self._math, described, [self._ram.address(slot) for slot in ram_slots],
            [tier.arena.address(slot) for slot in self._own], tier.arena.stride, self._layers, self._top_k,
        )  # fmt: skip
        device_experts.hold([-1 if one is None else self._numbers[one] for one in order])
        tier.cache.retire(own)  # once all the memory has been had that this takes
        self._device_experts = device_experts
        begun = Begun.REFUSED
        if kernels.tries(self._fetch_some):
            begun = Begun.RUNS if self._is_right(ram_slots) else Begun.WRONG_BYTES
        if begun is Begun.RUNS:
            self.misses()
        else:
            self.end()
        return begun

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x fp32 [T, H], ids int32 [T, k], weights fp32 [T, k] to [T, H]."""
        assert self._device_experts is not None, "it is on"
        return self._device_experts(layer, x, ids, weights)

    def misses(self) -> int:
        """Experts that came since it was asked last. Waits for the device."""
        assert self._device_experts is not None, "it is on"
        before, self._missed = self._missed, int(self._device_experts.counters[1])
        return self._missed - before

    def look(self) -> None:
        """Tell the host which experts are in the device's slots. Waits for the device."""
        assert self._device_experts is not None, "it is on"
        held = self._device_experts.held()
        self._tier.ceded = {self._experts[number]: self._own[place] for place, number in enumerate(held) if number >= 0}
        self._tier.table.adopt(self._tier.ceded, self._device_experts.words, self._own)

    def end(self) -> None:
        """The slots are the host's again, with what is in them."""
        self.look()
        held, self._tier.ceded = self._tier.ceded, {}
        self._device_experts = None
        self._tier.cache.restore(range(self._tier.cache.num_guests, self._tier.budget.num_slots), held)

    @property
    def _num_own(self) -> int:
        return self._tier.budget.num_slots - self._tier.cache.num_guests

    @property
    def _canaries(self) -> list[Expert]:
        """Some of the last layer's experts, those first that are not there."""
        of_layer = self._experts[-(len(self._experts) // len(self._layers)) :]
        return sorted(of_layer, key=self._tier.ceded.__contains__)[: min(_CANARIES, self._top_k)]

    def _fetch_some(self) -> None:
        assert self._device_experts is not None, "it is on"
        self.look()
        ids = torch.tensor([[expert for _, expert in self._canaries]], dtype=torch.int32, device=self._tier.accelerator.device)
        self._device_experts.fetch(self._layers[-1], ids)

    def _is_right(self, ram_slots: Sequence[int]) -> bool:
        """Bytes and descriptors of some experts."""
        tier, canaries = self._tier, self._canaries
        self.look()
        for expert in canaries:
            if (slot := tier.ceded.get(expert)) is None:
                return False
            brought, source = tier.arena.tensor(slot).cpu(), self._ram.tensor(ram_slots[self._numbers[expert]])
            is_described = torch.equal(tier.table.words[slot].cpu(), tier.table.words_in(slot, expert))
            if not is_described or not torch.equal(brought, source):
                return False
        return True


def _shares(
    layers: Sequence[int], slots: Sequence[int], held: dict[int, Expert], warmth: dict[Expert, float]
) -> tuple[list[int], list[Expert | None]]:
    """The slots layer by layer, as many for each, with what each holds: a layer's warmest experts stay, the coldest first."""
    each = len(slots) // len(layers)
    staying: dict[int, list[int]] = {layer: [] for layer in layers}
    for slot in sorted((slot for slot in slots if slot in held), key=lambda slot: -warmth[held[slot]]):
        if len(staying[held[slot][0]]) < each:
            staying[held[slot][0]].append(slot)
    kept = {slot for own in staying.values() for slot in own}
    others = iter([slot for slot in slots if slot not in kept])
    order: list[int] = []
    contents: list[Expert | None] = []
    for own in staying.values():
        empty = [next(others) for _ in range(each - len(own))]
        order += [*empty, *reversed(own)]
        contents += [*(None for _ in empty), *(held[slot] for slot in reversed(own))]
    return order, contents
