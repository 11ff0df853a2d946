"""A device with memory of its own, and the link to it: what the engine asks of any accelerator. Knows bytes, no expert.

Work on a device is queued: a copy is under way when `copy` returns, and what is launched after `Copy.order` sees its bytes.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.errors import EngineError
from engine.units import format_bytes

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]  # source and target, both uint8 [bytes] of the same size


class DeviceLost(Exception):  # noqa: N818 - what happened, to be dealt with by who can go on without the device
    """The device does not answer any more, and whatever it held is gone."""


class Copy(Protocol):
    """Bytes on their way over the link."""

    def order(self) -> None:
        """What is launched on the device from now on waits for them; the host goes on."""

    def finish(self) -> float:
        """The host waits until they are there. Seconds for which the link was busy with them. Raises `DeviceLost`."""
        ...


class Timing(Protocol):
    """Work on the device between two moments."""

    def stop(self) -> None: ...

    def seconds(self) -> float:
        """Waits for the second moment."""
        ...


class Accelerator(Protocol):
    """One device. One thread uses it. Any method may raise `DeviceLost`."""

    name: str
    device: torch.device

    def free_bytes(self) -> int:
        """What this process may still take, now."""
        ...

    def take(self, nbytes: int) -> torch.Tensor:
        """Memory as uint8 [nbytes], aligned to 256 bytes, given back when the tensor is. Raises `EngineError`."""
        ...

    def register(self, memory: torch.Tensor) -> bool:
        """Whether the device reads this memory of the host's by itself from now on. What it does not comes by a detour."""
        ...

    def reads(self, memory: torch.Tensor) -> bool:
        """Whether what runs on the device finds this memory of the host's at the address that it has here."""
        ...

    def release(self, memory: torch.Tensor) -> None:
        """Take that back, before the memory's pages go to other programs."""

    def copy(self, pairs: Pairs) -> Copy:
        """From the host's memory to the device's, after whatever has been launched there so far."""
        ...

    def time(self) -> Timing:
        """Of the device's own work, from now on."""
        ...

    def trim(self) -> None:
        """Memory that was given back goes to other programs."""


def refused(name: str, nbytes: int) -> EngineError:
    """For `Accelerator.take`."""
    return EngineError(
        "vram.refused",
        f"{name} refused {format_bytes(nbytes)} of its memory.",
        "Close other programs that use the graphics card, or set less of it for experts.",
    )
