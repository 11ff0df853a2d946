"""Fixed slots of RAM, one expert each, taken once and kept. Knows bytes and alignment, no expert and no format."""

import ctypes
import mmap
import sys
import threading
from typing import Protocol

import torch

from engine.checkpoint.experts import ExpertMap, ExpertPart, ExpertRange
from engine.errors import EngineError
from engine.units import format_bytes

BLOCK = 4096  # direct reads need memory, offset and length aligned to the drive's block; 4096 serves every drive
_HUGE_PAGE = 2 << 20
# Shared memory, Python's default, is neither backed by huge pages nor given back page by page.
_PRIVATE = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
_CHUNK = 1 << 30  # the system grants a gigabyte more readily than all at once
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python has no name for
_POPULATED_AT_ONCE = 32 << 20  # bytes between two looks at whether they are still wanted


def align_up(count: int, block: int = BLOCK) -> int:
    return -(-count // block) * block


def run_bases(expert: ExpertRange) -> list[int]:
    """Where each run of an expert lands in its slot. A run is read as the aligned superset of its bytes, so its data starts
    at `base + file_offset % BLOCK`."""
    bases, position = [], 0
    for run in expert.runs:
        bases.append(position)
        position += align_up(run.offset % BLOCK + run.nbytes)
    return bases


def part_start(expert: ExpertRange, part: ExpertPart) -> int:
    """Offset of a part's first byte within the slot."""
    return run_bases(expert)[part.run] + expert.runs[part.run].offset % BLOCK + part.start


def slot_stride(experts: ExpertMap) -> int:
    """Bytes that hold any expert of the map: those cut by a shard's end have more runs than others."""
    return max(
        sum(align_up(run.offset % BLOCK + run.nbytes) for run in item.runs)
        for layer in experts.ranges.values()
        for item in layer
    )


def aligned_memory(size: int) -> memoryview:
    """See `Memory`."""
    return Memory(size).view


class Memory:
    """`size` bytes of anonymous memory, 2 MiB aligned and backed by huge pages where the system grants them.

    Direct reads into 2 MiB pages run at twice the rate of 4 KiB pages. Raises `EngineError` when refused.
    """

    def __init__(self, size: int) -> None:
        try:
            self._mapped = mmap.mmap(-1, align_up(size, _HUGE_PAGE) + _HUGE_PAGE, **_PRIVATE)
        except (OSError, ValueError, OverflowError) as error:
            raise EngineError(
                "memory.refused",
                f"The system refused {format_bytes(size)} of memory.",
                "Close other programs, or set less memory for experts.",
            ) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapped.madvise(mmap.MADV_HUGEPAGE)
        address = torch.frombuffer(self._mapped, dtype=torch.uint8, count=1).data_ptr()
        self._first = -address % _HUGE_PAGE
        self.view = memoryview(self._mapped)[self._first :][:size]

    def give_back(self, begin: int) -> None:
        """The system may use the pages from byte `begin` on; written again they are zeros first. Only Linux takes them."""
        begin = self._first + align_up(begin, _HUGE_PAGE)
        if begin < len(self._mapped) and sys.platform == "linux":
            self._mapped.madvise(mmap.MADV_DONTNEED, begin, len(self._mapped) - begin)


class Host(Protocol):
    """A device, as far as the host's memory is concerned: see `engine.tiers.copy.Accelerator`."""

    def register(self, memory: torch.Tensor) -> bool: ...

    def release(self, memory: torch.Tensor) -> None: ...


class RamArena:
    """`num_slots` slots of `stride` bytes each, in chunks of about 1 GiB.

    A slot's memory stays valid for the arena's life, its content until it is given back. Who may write it is the cache's
    business.
    """

    def __init__(self, stride: int, num_slots: int) -> None:
        assert stride % BLOCK == 0, "slots must keep their neighbours aligned"
        self.stride = stride
        self.num_slots = num_slots
        self._is_shrunk = False
        self._readers: list[Host] = []
        self._per_chunk = max(1, _CHUNK // stride)
        counts = [min(self._per_chunk, num_slots - first) for first in range(0, num_slots, self._per_chunk)]
        self._chunks = [Memory(count * stride) for count in counts]
        self._addresses = [torch.frombuffer(chunk.view, dtype=torch.uint8, count=1).data_ptr() for chunk in self._chunks]
        self._tensors = [torch.frombuffer(chunk.view, dtype=torch.uint8) for chunk in self._chunks]

    def memory(self, slot: int) -> memoryview:
        """The slot as writable memory, for reads from disk."""
        chunk, index = divmod(slot, self._per_chunk)
        return self._chunks[chunk].view[index * self.stride : (index + 1) * self.stride]

    def tensor(self, slot: int) -> torch.Tensor:
        """The same bytes as uint8 [stride]."""
        chunk, index = divmod(slot, self._per_chunk)
        return self._tensors[chunk][index * self.stride : (index + 1) * self.stride]

    def address(self, slot: int) -> int:
        chunk, index = divmod(slot, self._per_chunk)
        return self._addresses[chunk] + index * self.stride

    def populate(self) -> None:
        """Have all pages touched in the background, beside whatever is read first: that takes as long as reading a fast drive,
        and reads that need not do it run at the drive's rate. Where the system has no call for it, reads do it."""
        if sys.platform == "linux" and self.num_slots * self.stride > _POPULATED_AT_ONCE:
            threading.Thread(target=self._populate, name="populate", daemon=True).start()

    def _populate(self) -> None:
        madvise = ctypes.CDLL(None).madvise  # unlike Python's own it lets other threads run
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for chunk, address in zip(self._chunks, self._addresses, strict=True):
            for begin in range(0, len(chunk.view), _POPULATED_AT_ONCE):
                count = min(_POPULATED_AT_ONCE, len(chunk.view) - begin)
                if self._is_shrunk or madvise(address + begin, count, _POPULATE_WRITE):
                    return

    def register(self, accelerator: Host) -> int:
        """Let a device read the slots by itself, chunk by chunk until it refuses one; how many bytes it may read."""
        self._readers.append(accelerator)
        total = 0
        for tensor in self._tensors:
            if not accelerator.register(tensor):
                break
            total += tensor.nbytes
        return total

    def give_back(self, first: int) -> None:
        """The content of the slots from `first` on is lost, and so is their memory until they are written again.

        No device may be reading.
        """
        self._is_shrunk = True
        for number, (chunk, tensor) in enumerate(zip(self._chunks, self._tensors, strict=True)):
            keep = max(0, first - number * self._per_chunk)
            if keep < self._per_chunk:
                for accelerator in self._readers:
                    accelerator.release(tensor)
                chunk.give_back(keep * self.stride)

    def take_back(self, count: int) -> int:
        """Memory that was given back comes again by itself, when it is written; devices may read it again."""
        for accelerator in self._readers:
            for tensor in self._tensors[: -(-count // self._per_chunk)]:
                if not accelerator.register(tensor):
                    break
        return count
