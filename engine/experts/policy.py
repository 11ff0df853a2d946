"""Which expert gives up its place when another needs one. Integers only; no slots, no tensors, no devices."""

from collections.abc import Mapping, Sequence
from typing import Protocol

HALF_LIFE_TOKENS = 20
"""Decay of heat. 12 to 32 are within a point of one another on the published traces and on a made-up one with topic switches;
256, as other engines use, loses 3 points at 10 % capacity on Qwen3-30B-A3B and 14 on the made-up one
(`python -m tests.perf.replay`, which measured the bonus and the guests too)."""

LAST_TOKEN_BONUS = 6.0
"""Uses that an expert of the layer's last token counts for on top. Without it 10 % capacity loses 3 points on Qwen3-30B-A3B
and 5 on the made-up trace; 4 to 8 are alike."""

_OTHER_LAYER_HANDICAP = 1.1
"""Another layer gives an expert only if that is clearly colder. Heats that are alike would move slots to the layer whose turn
it was, away from those whose turn comes next: uniform routing loses 0.2 points by it."""

_WARM_SHARE = 0.25
"""Of saved heat. With all of it, 32 tokens on another topic miss up to 15 % more than from a cold start, with a quarter 5 %;
where the topic goes on it makes no difference from 25 % capacity up."""

_LARGEST_GROWTH = 2.0**60  # then heat is scaled back, long before a use is lost in the rounding

Expert = tuple[int, int]  # (layer, expert)


class Policy(Protocol):
    """Ranks experts. It owns no slots: the cache tells it who is a member and asks which member is to give up.

    Only decoded tokens reach it, so a prompt neither heats nor evicts. Every method but `victim` may change its state.
    """

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        """A decoded token was routed to these experts of the layer, members or not; once per layer and token."""

    def admit(self, layer: int, expert: int) -> None:
        """The expert is a member from now on."""

    def drop(self, layer: int, expert: int) -> None:
        """The expert is no longer a member."""

    def victim(self, layer: int) -> Expert:
        """The member of any layer that is to give up, when `layer` has just been touched. There is one member at least."""


class Heat:
    """The member of least heat gives up. Heat is uses, halved every `half_life` tokens, and a bonus for the layer's last token.

    Frequency alone clings to the topic before; recency alone forgets what returns. Heat is compared across layers, so a layer
    that gains more from a slot comes to hold more of them. It follows each layer's own count of tokens, since by one common
    clock the layers whose turn is next would look coldest. The victim is sought in the touched layer and one other in turn,
    which is as good as in all of them. A new expert that is colder than every member gives up at once: that is admission.
    """

    def __init__(
        self, layers: Sequence[int], num_experts: int, half_life: float = HALF_LIFE_TOKENS, bonus: float = LAST_TOKEN_BONUS
    ) -> None:
        self._layers = {layer: _LayerHeat(num_experts) for layer in layers}
        self._following = dict(zip(layers, [*layers[1:], *layers[:1]], strict=True))
        self._donor = layers[0]
        self._growth_per_token, self._bonus = 2 ** (1 / half_life), bonus

    def touch(self, layer: int, experts: Sequence[int]) -> None:
        state = self._layers[layer]
        heat, last_token = state.heat, state.last_token
        for expert, without_bonus in last_token.items():
            heat[expert] = without_bonus
        last_token.clear()
        state.growth = growth = state.growth * self._growth_per_token  # instead of cooling every expert
        bonus = growth * self._bonus
        for expert in experts:
            last_token[expert] = warmer = heat[expert] + growth
            heat[expert] = warmer + bonus
        if growth > _LARGEST_GROWTH:
            state.rescale()

    def admit(self, layer: int, expert: int) -> None:
        self._layers[layer].members[expert] = None

    def drop(self, layer: int, expert: int) -> None:
        del self._layers[layer].members[expert]
        self._donor = self._following[self._donor]

    def victim(self, layer: int) -> Expert:
        own, donor = self._layers[layer], self._donor_beside(layer)
        if not own.members:
            return donor, self._layers[donor].coldest()
        coldest = own.coldest()
        if donor != layer:
            other = self._layers[donor]
            expert = other.coldest()
            if other.heat[expert] / other.growth * _OTHER_LAYER_HANDICAP < own.heat[coldest] / own.growth:
                return donor, expert
        return layer, coldest

    def _donor_beside(self, layer: int) -> int:
        """The next layer in turn that has members; `layer` itself when no other has."""
        donor = self._donor
        for _ in self._following:
            if donor != layer and self._layers[donor].members:
                return donor
            donor = self._following[donor]
        return layer

    def warmth(self, expert: Expert) -> float:
        """Of one expert, for comparing those of one layer."""
        return self._layers[expert[0]].heat[expert[1]]

    def heat(self) -> dict[Expert, float]:
        """Heat in uses, without the bonus, of all experts that have any."""
        return {
            (layer, expert): state.last_token.get(expert, value) / state.growth
            for layer, state in self._layers.items()
            for expert, value in enumerate(state.heat)
            if value > 0
        }

    def warm(self, heat: Mapping[Expert, float]) -> None:
        """Begin with heat that another run had; before the first token."""
        for (layer, expert), value in heat.items():
            self._layers[layer].heat[expert] = value * _WARM_SHARE


class _LayerHeat:
    """`heat` is in uses × `growth`, and includes the bonus of the last token's experts; `last_token` has theirs without it."""

    def __init__(self, num_experts: int) -> None:
        self.heat = [0.0] * num_experts
        self.growth = 1.0
        self.last_token: dict[int, float] = {}
        self.members: dict[int, None] = {}

    def coldest(self) -> int:
        return min(self.members, key=self.heat.__getitem__)

    def rescale(self) -> None:
        self.heat = [value / self.growth for value in self.heat]
        self.last_token = {expert: value / self.growth for expert, value in self.last_token.items()}
        self.growth = 1.0
