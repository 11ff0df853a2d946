"""By which way the experts of a layer are computed once their bytes are in RAM: by the CPU there, or on a device."""

from typing import Any, Protocol

import torch

from engine.experts.call import Call
from engine.experts.policy import Expert
from engine.experts.table import SlotTable
from engine.kernels.kernels import Kernels
from engine.kernels.weights import ExpertMath
from engine.meter import Link, Meter, Phase


class Lanes(Protocol):
    """What `ExpertRunner` hands a layer's work to. One thread calls it.

    `notice` is a sentence where a part of it helps nobody. With a device, calls raise `DeviceLost` and torch's
    `OutOfMemoryError`.
    """

    @property
    def notice(self) -> str: ...

    def begin_pass(self, phase: Phase) -> None: ...

    def holds(self, expert: Expert) -> bool:
        """Whether it needs no RAM."""
        ...

    def alone(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor | None:
        """All of a decoded token's layer, [1, H], where the host need not know what was routed; None where it must."""
        ...

    def begin(self, call: Call) -> list[Expert]:
        """Which of the call's experts RAM has to serve, in their order."""
        ...

    def serve(self, call: Call, slots: dict[Expert, int], *, is_last: bool) -> torch.Tensor | None:
        """Compute experts that are in these slots of RAM; with the last of them the weighted sum of all, [T, H]."""
        ...

    def release(self) -> None:
        """Returns when no slot of RAM is being read any more: another expert may be read into one."""

    def shrink(self, share: float) -> bool:
        """A device refused memory: give so much of its slots back. False where there is none to give."""
        ...

    def kept(self) -> Any:
        """What was learnt, for the next start; None where there was nothing to learn."""

    def end_pass(self) -> None:
        """What the pass has moved is known from now on."""


class CpuLane:
    """Every expert in RAM, by the kernels of the CPU."""

    notice = ""

    def __init__(self, table: SlotTable, kernels: Kernels, math: ExpertMath, meter: Meter, expert_bytes: int) -> None:
        self._table, self._kernels, self._math, self._meter = table, kernels, math, meter
        self._expert_bytes = expert_bytes

    def begin_pass(self, phase: Phase) -> None: ...

    def holds(self, expert: Expert) -> bool:
        return False

    def alone(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor | None:
        return None

    def begin(self, call: Call) -> list[Expert]:
        return call.wanted

    def serve(self, call: Call, slots: dict[Expert, int], *, is_last: bool) -> torch.Tensor | None:
        if len(slots) < len(call.wanted) and call.outputs is None:
            call.outputs = call.x.new_empty(*call.shape, call.x.shape[1])
        return self.compute(call.x, call.slots_of(slots), len(slots), call.outputs, call.weights if is_last else None)

    def compute(
        self,
        x: torch.Tensor,
        slots: torch.Tensor,
        num_experts: int,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor | None:
        """See `Kernels.moe`: the rows of `num_experts` experts, and the sum of all rows where weights are given."""
        with self._meter.timed(Link.RAM, num_experts * self._expert_bytes):
            return self._kernels.moe(self._table, x, slots, outputs, weights, self._math)

    def release(self) -> None: ...

    def end_pass(self) -> None: ...

    def shrink(self, share: float) -> bool:
        return False

    def kept(self) -> Any:
        return None
