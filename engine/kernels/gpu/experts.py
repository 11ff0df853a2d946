"""A layer's experts without the host: which are there, which come over the link and to where, is decided on the device.

For models whose experts all lie in memory that the device reads by itself. Shapes are fixed, and nothing waits for a result, so
that a step can be captured in a CUDA graph. Where Triton does not run, the host decides: `engine.experts.device_lanes`.
"""

from collections.abc import Sequence
from typing import Any

import torch

from engine.kernels.gpu.cache import Bank, Cache, Described
from engine.kernels.gpu.kernels import DeviceKernels, words_of
from engine.kernels.gpu.shape import POINTERS, WORDS, shape_at
from engine.kernels.native import ExpertTable
from engine.kernels.weights import ExpertMath


def describe(tables: Sequence[tuple[ExpertTable, int, int]], stride: int) -> Described:
    """Of each expert a table that has it, its slot there, and where that slot of `stride` bytes begins.

    Raises `AssertionError` for experts that these kernels do not read: see `shape_at`.
    """
    rows, inside = [], []
    for table, slot, start in tables:
        words = words_of(table, torch.device("cpu")).cpu()[slot]
        own = torch.zeros(WORDS, dtype=torch.int64)
        own[list(POINTERS)] = 1
        own &= (words >= start) & (words < start + stride)
        rows.append(words - own * start)
        inside.append(own)
    entry = tables[0][0].entries[tables[0][1]]
    up, down = shape_at(entry.up), shape_at(entry.down)
    assert up is not None, "experts that the kernels read"
    assert down is not None, "experts that the kernels read"
    return Described(torch.stack(rows), torch.stack(inside), up, down)


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
    def bytes_moved(self) -> int:
        """Over the link so far. Waits for the device."""
        return int(self.counters[1]) * self.slot_bytes

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Weighted sum of each token's experts: x fp32 [T, H], ids int32 [T, k], weights fp32 [T, k] to [T, H]."""
        assert ids.numel() <= len(self._cache.moved_slots), f"{ids.numel()} pairs in a step"
        place, count = self._place[layer], self._slots_each
        slots = self._launcher.resolve(ids, self._cache, self.counters, place * self._num_experts, place * count, count)
        self._launcher.gather(self._cache, self._bank)
        outputs = x.new_empty(*ids.shape, x.shape[1])
        self._launcher.moe(self._bank.words, self._up_down, x, slots, outputs, self._math)
        return self._kernels.combine(outputs, weights)
