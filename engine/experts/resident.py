"""A decoded token's experts where one device holds them all: each has its slot, and nobody needs to be asked."""

from collections.abc import Sequence

import torch

from engine.experts.vram import VramTier
from engine.kernels.weights import ExpertMath


class Resident:
    """`Experts` of `engine.models.layers` for as long as it `is_ready`. The host's bookkeeping stays as it is."""

    def __init__(self, tier: VramTier, layers: Sequence[int], num_experts: int, math: ExpertMath) -> None:
        self._tier, self._layers, self._num_experts, self._math = tier, layers, num_experts, math
        self._slots = torch.empty(len(layers), num_experts, dtype=torch.int32, device=tier.accelerator.device)
        self._places = {layer: place for place, layer in enumerate(layers)}
        self._changes = -1

    def is_ready(self) -> bool:
        """Whether every expert is there. Asked before each token, as slots may have been given back since."""
        cache = self._tier.cache
        if cache.num_resident < len(self._layers) * self._num_experts:
            return False
        if cache.changes != self._changes:
            self.look()
            self._changes = cache.changes
        return True

    def look(self) -> None:
        """Where every expert is; those that are absent must not be asked for."""
        held = self._tier.cache.residents()
        slots = [held.get((layer, expert), -1) for layer in self._layers for expert in range(self._num_experts)]
        self._slots.copy_(torch.tensor(slots, dtype=torch.int32).view_as(self._slots))

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x fp32 [T, H], ids int32 [T, k], weights fp32 [T, k] to [T, H]."""
        slots = self._slots[self._places[layer]].index_select(0, ids.flatten()).view_as(ids)
        y = self._tier.kernels.moe(self._tier.table, x, slots, None, weights, self._math)
        assert y is not None, "there are weights"
        return y
