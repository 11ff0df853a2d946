"""Which expert is in which slot. Bookkeeping alone: it moves no bytes and knows no device."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from engine.experts.policy import Expert, Policy

_NONE: Mapping[Expert, int] = MappingProxyType({})


class ExpertCache:
    """Slots are numbered through, over all that the plan gives, and any slot serves any layer.

    An expert is absent, loading (`claim` to `commit` or `abandon`), a guest or a member; members and guests are hits. The
    policy decides who is a member. Guests have the slots beside: experts that have just come in or just given up membership.
    The oldest guest leaves first, so a claim waits for no decision, and a prompt, which touches nothing, passes through
    the guests' slots alone. One thread calls it.
    """

    def __init__(self, layers: Sequence[int], slots_per_layer: Sequence[int], policy: Policy, num_guests: int) -> None:
        num_slots = sum(slots_per_layer)
        assert num_slots > 0, "a cache without slots"
        self._policy, self._num_guests = policy, min(num_guests, num_slots)
        self._layers = tuple(layers)
        self._resident: dict[int, dict[int, int]] = {layer: {} for layer in layers}  # layer to expert to slot
        self._guests: dict[Expert, None] = {}  # the oldest first
        self._loading: set[int] = set()
        self._free = list(range(num_slots - 1, -1, -1))
        self._retired: set[int] = set()
        self._num_slots = num_slots
        self.num_resident = 0
        self.changes = 0  # how often an expert has come or gone

    @property
    def member_slots(self) -> int:
        """How many experts the policy may keep."""
        return max(0, self._num_slots - len(self._retired) - self._num_guests)

    @property
    def num_guests(self) -> int:
        """Slots that experts pass through."""
        return min(self._num_guests, self._num_slots - len(self._retired))

    def residents(self) -> dict[Expert, int]:
        """All of them, with their slots."""
        return {(layer, expert): slot for layer, held in self._resident.items() for expert, slot in held.items()}

    def lookup(self, layer: int, expert: int) -> int | None:
        """The slot of a resident expert, or None. Changes nothing."""
        return self._resident[layer].get(expert)

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """A decoded token used these experts, each once. Whoever reads a prompt does not call it."""
        guests = self._guests
        for expert in experts:
            if (layer, expert) in guests:
                self.admit(layer, expert)
        self._policy.touch(layer, experts)
        self._make_room(layer)

    def admit(self, layer: int, expert: int) -> None:
        """Make a guest a member without a token's use, as a warm start does."""
        del self._guests[layer, expert]
        self._policy.admit(layer, expert)

    def claim(self, keep: Collection[Expert]) -> int | None:
        """A slot to load into: a free one, else the oldest guest's that is not in `keep`; None if there is none."""
        if self._free:
            slot = self._free.pop()
        else:
            guest = next((guest for guest in self._guests if guest not in keep), None)
            if guest is None:
                return None
            slot = self._evict(guest)
        self._loading.add(slot)
        return slot

    def commit(self, layer: int, expert: int, slot: int) -> None:
        """The expert's bytes are complete in a claimed slot."""
        assert expert not in self._resident[layer], f"expert {expert} of layer {layer} is resident already"
        self._loading.remove(slot)
        self._settle(layer, expert, slot)
        self._guests[layer, expert] = None

    def abandon(self, slot: int) -> None:
        """The load into a claimed slot failed; the slot is free again."""
        self._loading.remove(slot)
        self._free.append(slot)

    def retire(self, slots: Iterable[int]) -> None:
        """These slots' memory is going away: their experts are absent, and nobody claims them. Nothing may be loading there.

        At least one slot must stay.
        """
        leaving = set(slots) - self._retired
        assert not leaving & self._loading, "a slot is retired while something loads into it"
        assert len(leaving) + len(self._retired) < self._num_slots, "a cache without slots"
        self._free = [slot for slot in self._free if slot not in leaving]
        for layer, resident in self._resident.items():
            for expert in [expert for expert, slot in resident.items() if slot in leaving]:
                if (layer, expert) not in self._guests:
                    self._demote((layer, expert))
                self._evict((layer, expert))
        self._retired |= leaving
        self._make_room(self._layers[0])

    def restore(self, slots: Iterable[int], held: Mapping[Expert, int] = _NONE) -> None:
        """Retired slots have memory again, and are free but for those that hold an expert, which is a member."""
        staying = {slot: expert for expert, slot in held.items() if expert[1] not in self._resident[expert[0]]}
        for slot in slots:
            self._retired.remove(slot)
            if slot in staying:
                self._settle(*staying[slot], slot)
                self._policy.admit(*staying[slot])
            else:
                self._free.append(slot)
        self._make_room(self._layers[0])

    def _settle(self, layer: int, expert: int, slot: int) -> None:
        self._resident[layer][expert] = slot
        self.num_resident += 1
        self.changes += 1

    def _make_room(self, layer: int) -> None:
        """Members become guests until guests have their number of slots; `layer` was touched last."""
        room = len(self._guests) + len(self._free) + len(self._loading)
        for _ in range(self.num_guests - room):
            self._demote(self._policy.victim(layer))

    def _demote(self, member: Expert) -> None:
        self._policy.drop(*member)
        self._guests[member] = None

    def _evict(self, guest: Expert) -> int:
        del self._guests[guest]
        self.num_resident -= 1
        self.changes += 1
        return self._resident[guest[0]].pop(guest[1])

    def check_integrity(self) -> None:
        """Asserts that each slot is free, loading, retired or holds one expert, and that guests are resident."""
        held = [slot for resident in self._resident.values() for slot in resident.values()]
        slots = sorted([*held, *self._free, *self._loading, *self._retired])
        assert slots == list(range(self._num_slots)), "a slot is lost or in use twice"
        assert all(expert in self._resident[layer] for layer, expert in self._guests), "a guest is not resident"
        room = len(self._guests) + len(self._free) + len(self._loading)
        assert room >= self.num_guests, f"{room} slots are left to guests"
        assert self.num_resident == len(held), "residents are miscounted"
