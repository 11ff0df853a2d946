"""A layer's experts without the host: which are there, which come over the link and to where, is decided on the device.

For models whose experts all lie in memory that the device reads by itself. Shapes are fixed, and nothing waits for a result, so
that a step can be captured in a CUDA graph. Where Triton does not run, the host decides: `engine.experts.device_lanes`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from engine.kernels.gpu.cache import Bank, Cache, Described
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.gpu.shape import WORDS
from engine.kernels.weights import ExpertMath


class DeviceExperts:
    """`Experts` of `engine.models.layers`, over slots of which each layer has its own share.

    `sources` and `targets` are addresses aligned to 16 bytes; both must stay what they are, and the memory behind them too.
    """

    def __init__(
        self,
        kernels: DeviceKernels,
        math: ExpertMath,
        described: Described,
        sources: Sequence[int],
        targets: Sequence[int],
        slot_bytes: int,
        layers: Sequence[int],
        most_pairs: int,
    ) -> None:
        """`most_pairs` are the most pairs of token and rank in a step: every layer gets as many slots at least."""
        assert kernels.launcher is not None, "only with Triton"
        assert slot_bytes % 16 == 0, "slots are copied by vectors of 16 bytes"
        device = kernels.device
        count = len(targets) // len(layers)
        assert count >= most_pairs, f"{count} slots for each layer, and a step may use {most_pairs}"
        self._kernels, self._math, self._up_down = kernels, math, (described.up, described.down)
        self._launcher: Any = kernels.launcher
        self._place = {layer: place for place, layer in enumerate(layers)}
        self._num_experts, self._slots_each, self.slot_bytes = len(sources) // len(layers), count, slot_bytes

        def filled(size: int, value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full((size,), value, dtype=dtype, device=device)

        self._cache = Cache(
            filled(len(sources), -1), filled(len(targets), -1), filled(len(targets), -1, torch.int64),
            filled(1, 0, torch.int64), filled(most_pairs, 0), filled(most_pairs, 0), filled(1, 0),
        )  # fmt: skip
        on_device = Described(described.words.to(device), described.is_inside.to(device), described.up, described.down)
        self._bank = Bank(
            torch.tensor(sources, dtype=torch.int64, device=device), torch.tensor(targets, dtype=torch.int64, device=device),
            on_device, torch.zeros(len(targets), WORDS, dtype=torch.int64, device=device), slot_bytes,
        )  # fmt: skip
        self.counters = torch.zeros(2, dtype=torch.int64, device=device)
        """Hits and misses so far, on the device: read them when the host waits anyway."""

    @property
    def words(self) -> torch.Tensor:
        """The descriptors of its slots, int64 [N, W] on the device."""
        return self._bank.words

    def hold(self, experts: Sequence[int]) -> None:
        """What its slots hold before the first step, -1 for nothing: in each layer's share the first leaves first."""
        cache, bank = self._cache, self._bank
        expert_of = torch.tensor(experts, dtype=torch.int32)
        places = (expert_of >= 0).nonzero().flatten()
        numbers = expert_of[places].long()
        slot_of = torch.full((len(cache.slot_of),), -1, dtype=torch.int32)
        slot_of[numbers] = places.int()
        cache.expert_of.copy_(expert_of)
        cache.slot_of.copy_(slot_of)
        cache.stamps.copy_(torch.where(expert_of >= 0, torch.arange(len(experts)), -1))
        cache.clock.fill_(len(experts))
        places, numbers = places.to(bank.words.device), numbers.to(bank.words.device)
        starts = bank.described.is_inside[numbers] * bank.targets[places, None]
        bank.words[places] = bank.described.words[numbers] + starts

    def held(self) -> list[int]:
        """The expert in each of its slots, -1 for none. Waits for the device."""
        return self._cache.expert_of.tolist()

    @property
    def bytes_moved(self) -> int:
        """Over the link so far. Waits for the device."""
        return int(self.counters[1]) * self.slot_bytes

    def fetch(self, layer: int, ids: torch.Tensor) -> torch.Tensor:
        """Have these experts in the device's memory: ids int32 [T, k] to their slots int32 [T, k]."""
        assert ids.numel() <= len(self._cache.moved_slots), f"{ids.numel()} pairs in a step"
        place, count = self._place[layer], self._slots_each
        slots: torch.Tensor = self._launcher.resolve(
            ids, self._cache, self.counters, place * self._num_experts, place * count, count
        )
        self._launcher.gather(self._cache, self._bank)
        return slots

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x fp32 [T, H], ids int32 [T, k], weights fp32 [T, k] to [T, H]."""
        slots = self.fetch(layer, ids)
        outputs = x.new_empty(*ids.shape, x.shape[1])
        self._launcher.moe(self._bank.words, self._up_down, x, slots, outputs, self._math)
        return self._kernels.combine(outputs, weights)
