"""One layer's work: what the experts get, and where their rows go. Knows slots by number, whatever they are of."""

from array import array
from collections.abc import Collection, Mapping

import torch

from engine.experts.policy import Expert


class Call:
    """x [T, H], ids [T, k], weights [T, k]; `wanted` are the experts in the order in which they are met.

    `outputs` [T, k, H] is needed only where the work is done in several calls.
    """

    def __init__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> None:
        self.layer, self.x, self.weights = layer, x, weights
        self.numbers: list[int] = ids.flatten().tolist()  # the one place where the host learns what was routed
        self.shape = ids.shape
        self.wanted: list[Expert] = [(layer, expert) for expert in dict.fromkeys(self.numbers)]
        self.outputs: torch.Tensor | None = None
        self.is_begun = False  # what needs no RAM is computed, or on its way

    def slots_of(self, slots: Mapping[Expert, int]) -> torch.Tensor:
        """int32 [T, k]: the slot of each routed expert, -1 for those that are not of `slots`."""
        if len(self.wanted) == len(self.numbers):  # none twice
            numbers = array("i", [slots.get(expert, -1) for expert in self.wanted])
        else:
            own = {expert: slot for (_, expert), slot in slots.items()}
            numbers = array("i", [own.get(expert, -1) for expert in self.numbers])
        return torch.frombuffer(numbers, dtype=torch.int32).view(self.shape)  # a quarter of torch.tensor's time

    def ranks_of(self, experts: Collection[Expert]) -> list[int]:
        """Places in [T * k] of these experts."""
        own = {expert for _, expert in experts}
        return [rank for rank, expert in enumerate(self.numbers) if expert in own]
