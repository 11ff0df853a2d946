"""Which expert is in which slot. Bookkeeping alone: it moves no bytes and knows no device."""

from collections.abc import Collection, Sequence

from engine.experts.policy import Policy


class ExpertCache:
    """Slots are divided over layers by the plan (`slots_per_layer`, in the order of `layers`) and numbered through.

    An expert is absent, loading (`claim` to `commit` or `abandon`) or resident. Only resident experts are hits.
    """

    def __init__(self, layers: Sequence[int], slots_per_layer: Sequence[int], policy: Policy) -> None:
        self._policy = policy
        self._resident: dict[int, dict[int, int]] = {layer: {} for layer in layers}
        self._free: dict[int, list[int]] = {}
        first = 0
        for layer, count in zip(layers, slots_per_layer, strict=True):
            self._free[layer] = list(range(first, first + count))
            first += count
        self._num_slots = first

    def lookup(self, layer: int, expert: int) -> int | None:
        """The slot of a resident expert, or None. Changes nothing."""
        return self._resident[layer].get(expert)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """These resident experts were used now, in this order."""
        for expert in experts:
            if expert in self._resident[layer]:
                self._policy.touch(layer, expert)

    def claim(self, layer: int, keep: Collection[int]) -> int | None:
        """A slot to load into: a free one, else that of the policy's victim, never one of `keep`. None if there is none now."""
        if self._free[layer]:
            return self._free[layer].pop()
        victim = self._policy.victim(layer, keep)
        if victim is None:
            return None
        self._policy.drop(layer, victim)
        return self._resident[layer].pop(victim)

    def commit(self, layer: int, expert: int, slot: int) -> None:
        """The expert's bytes are complete in a claimed slot."""
        assert expert not in self._resident[layer], f"expert {expert} of layer {layer} is resident already"
        self._resident[layer][expert] = slot
        self._policy.touch(layer, expert)

    def abandon(self, layer: int, slot: int) -> None:
        """The load into a claimed slot failed; the slot is free again."""
        self._free[layer].append(slot)

    def check_integrity(self) -> None:
        """While nothing loads, every slot is free or holds one expert. Asserts."""
        slots = [slot for layer in self._resident.values() for slot in layer.values()]
        slots += [slot for free in self._free.values() for slot in free]
        assert sorted(slots) == list(range(self._num_slots)), "a slot is lost or in use twice"
