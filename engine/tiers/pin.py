"""Memory of the host that a device may read by itself, and a small ring of it for bytes that lie elsewhere. Knows addresses.

Registering is best effort: Windows, WSL and containers cap it, and after one refusal nothing more is tried.
"""

from bisect import bisect_right, insort
from collections.abc import Callable
from typing import Protocol

import torch

_BUFFERS = 4


class Registry(Protocol):
    """How a device's runtime is told of memory."""

    def add(self, address: int, nbytes: int) -> bool: ...

    def remove(self, address: int) -> None: ...


class PinnedMemory:
    """What has been registered with a device, up to `limit_bytes`."""

    def __init__(self, registry: Registry, limit_bytes: int | None = None) -> None:
        self._registry, self._left = registry, limit_bytes
        self._ranges: list[tuple[int, int]] = []  # (first address, the one behind), sorted
        self._is_refused = False

    def register(self, memory: torch.Tensor) -> bool:
        """Whether the device reads it directly from now on."""
        if self.has(memory):
            return True
        first, nbytes = memory.data_ptr(), memory.nbytes
        if self._is_refused or (self._left is not None and nbytes > self._left) or not self._registry.add(first, nbytes):
            self._is_refused = True
            return False
        if self._left is not None:
            self._left -= nbytes
        insort(self._ranges, (first, first + nbytes))
        return True

    def release(self, memory: torch.Tensor) -> None:
        """Before its pages go back to the system. Nothing may be reading it."""
        first = memory.data_ptr()
        if (first, first + memory.nbytes) in self._ranges:
            self._ranges.remove((first, first + memory.nbytes))
            self._registry.remove(first)
            if self._left is not None:
                self._left += memory.nbytes

    def has(self, tensor: torch.Tensor) -> bool:
        first = tensor.data_ptr()
        index = bisect_right(self._ranges, (first, 1 << 64)) - 1
        return index >= 0 and first + tensor.nbytes <= self._ranges[index][1]


class Ring:
    """A few registered buffers: bytes are copied into the next one by the CPU, and from there by the device.

    `make(nbytes)` gives a buffer.
    """

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self._make = make
        self._buffers: list[torch.Tensor | None] = [None] * _BUFFERS
        self._ends: list[Callable[[], object] | None] = [None] * _BUFFERS
        self._turn = 0

    def through(self, source: torch.Tensor, move: Callable[[torch.Tensor], Callable[[], object]]) -> None:
        """Has `move` copy the same bytes from a buffer; it returns what waits for the end of that."""
        turn, self._turn = self._turn, (self._turn + 1) % _BUFFERS
        if (end := self._ends[turn]) is not None:
            end()
        buffer = self._buffers[turn]
        if buffer is None or buffer.nbytes < source.nbytes:
            buffer = self._buffers[turn] = self._make(source.nbytes)
        part = buffer[: source.nbytes]
        part.copy_(source)
        self._ends[turn] = move(part)
