"""Fixed slots of a device's memory, one expert each, in chunks that can be given back. Knows bytes and no expert."""

import torch

from engine.errors import EngineError
from engine.tiers.copy import Accelerator

_CHUNK = 256 << 20  # bytes: what a program that starts beside may get back at once


class VramArena:
    """`num_slots` slots of `stride` bytes. `give_back` and `take_back` move whole chunks; a slot's place may change by it.

    Raises `EngineError` where not even one slot is granted; takes fewer slots where fewer are.
    """

    def __init__(self, accelerator: Accelerator, stride: int, num_slots: int) -> None:
        self.stride = stride
        self._accelerator = accelerator
        per_chunk = max(1, _CHUNK // stride)
        self._firsts: list[int] = [*range(0, num_slots, per_chunk), num_slots]  # of each chunk, and the end
        self._chunks: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._per_chunk = per_chunk
        self.num_slots: int = num_slots
        self.num_slots = self.take_back(num_slots)
        if not self.num_slots:
            accelerator.take(stride)

    def tensor(self, slot: int) -> torch.Tensor:
        """The slot's bytes on the device, uint8 [stride]."""
        chunk, index = divmod(slot, self._per_chunk)
        return self._chunks[chunk][index * self.stride : (index + 1) * self.stride]

    def address(self, slot: int) -> int:
        chunk, index = divmod(slot, self._per_chunk)
        return self._addresses[chunk] + index * self.stride

    def give_back(self, first: int) -> None:
        """The content of the slots from `first` on is lost, and the memory of whole chunks of them is anybody's.

        A tensor of a single slot would keep its chunk.
        """
        keep = next((index for index, begin in enumerate(self._firsts) if begin >= first), len(self._chunks))
        if keep < len(self._chunks):
            del self._chunks[keep:], self._addresses[keep:]
            self._accelerator.trim()

    def take_back(self, count: int) -> int:
        """Have memory for the first `count` slots again; how many there are then."""
        for begin, end in list(zip(self._firsts, self._firsts[1:], strict=False))[len(self._chunks) :]:
            if begin >= count:
                break
            try:
                chunk = self._accelerator.take((end - begin) * self.stride)
            except EngineError:
                return begin
            self._chunks.append(chunk)
            self._addresses.append(chunk.data_ptr())
        return min(count, self._firsts[-1])
