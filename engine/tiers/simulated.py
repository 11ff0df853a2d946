"""An accelerator made of ordinary memory, for tests and for `stoker bench --simulate`: a link of a given rate and latency, a
kernel rate, and a fixed amount of memory. What it computes is real; only its time is made up.
"""

import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.tiers.copy import DeviceLost, Pairs, refused
from engine.tiers.pin import PinnedMemory, Ring

_ALIGNMENT = 256
_SPIN_SECONDS = 200e-6  # a sleep may take so much longer than asked


@dataclass(frozen=True, slots=True)
class Simulation:
    """GB/s and seconds; 0 for no limit."""

    vram_bytes: int
    link_gbps: float = 0.0
    latency_seconds: float = 0.0
    pin_bytes: int | None = None  # of the host's memory that may be registered


class SimulatedAccelerator:
    """An `Accelerator`. `others` is what other programs hold of its memory; `lose` makes every later use fail."""

    def __init__(self, simulation: Simulation, name: str = "a simulated accelerator") -> None:
        self.name, self.device = name, torch.device("cpu")
        self.others = 0
        self._simulation = simulation
        self._taken = 0
        self._is_lost = False
        self._link = ThreadPoolExecutor(1, "link")
        self.pinned = PinnedMemory(_Anything(), simulation.pin_bytes)
        self._ring = Ring(lambda nbytes: torch.empty(nbytes, dtype=torch.uint8))
        self.detours = 0  # copies of memory that was not registered

    def lose(self) -> None:
        self._is_lost = True

    def free_bytes(self) -> int:
        self._check()
        return max(0, self._simulation.vram_bytes - self._taken - self.others)

    def take(self, nbytes: int) -> torch.Tensor:
        self._check()
        if nbytes > self.free_bytes():
            raise refused(self.name, nbytes)
        memory = _Memory(nbytes + _ALIGNMENT)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._taken += nbytes
        weakref.finalize(memory, self._give_back, nbytes)  # with the last tensor that is a part of it
        first = -whole.data_ptr() % _ALIGNMENT
        return whole[first : first + nbytes]

    def copy(self, pairs: Pairs) -> "_Copy":
        self._check()
        return _Copy(self, self._link.submit(self._move, list(pairs)))

    def register(self, memory: torch.Tensor) -> bool:
        return self.pinned.register(memory)

    def reads(self, memory: torch.Tensor) -> bool:
        return self.pinned.has(memory)

    def release(self, memory: torch.Tensor) -> None:
        self.pinned.release(memory)

    def time(self) -> "_Timing":
        self._check()
        return _Timing()

    def trim(self) -> None:
        """Nothing is held back."""

    def _move(self, pairs: Pairs) -> float:
        """In the link's thread, one after another; the seconds that it took."""
        begun, total = time.perf_counter(), 0
        for source, target in pairs:
            self._move_one(source, target)
            total += source.nbytes
        if self._simulation.link_gbps:
            _sleep_until(begun + self._simulation.latency_seconds + total / self._simulation.link_gbps / 1e9)
        return time.perf_counter() - begun

    def _move_one(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if self.pinned.has(source):
            target.copy_(source)
            return

        def from_buffer(buffer: torch.Tensor) -> Callable[[], object]:
            target.copy_(buffer)
            return lambda: None

        self.detours += 1
        self._ring.through(source, from_buffer)

    def _check(self) -> None:
        if self._is_lost:
            raise DeviceLost(f"{self.name} is gone")

    def _give_back(self, nbytes: int) -> None:
        self._taken -= nbytes


class _Anything:
    """A `Registry` that refuses nothing."""

    def add(self, address: int, nbytes: int) -> bool:
        return True

    def remove(self, address: int) -> None: ...


class _Memory(bytearray):
    """One that can be watched for its end."""

    __slots__ = ("__weakref__",)


class _Copy:
    """A `Copy`. Here what is launched runs at once, so that the order is kept by waiting."""

    def __init__(self, accelerator: SimulatedAccelerator, moved: "Future[float]") -> None:
        self._accelerator, self._moved = accelerator, moved

    def order(self) -> None:
        self._moved.result()

    def finish(self) -> float:
        self._accelerator._check()
        return self._moved.result()


class _Timing:
    """A `Timing`."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._ended = 0.0

    def stop(self) -> None:
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        return self._ended - self._begun


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left - _SPIN_SECONDS if left > _SPIN_SECONDS else 0)
