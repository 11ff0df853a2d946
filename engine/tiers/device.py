"""Graphics cards through torch: CUDA and ROCm, XPU, MPS by one interface. See `Accelerator`."""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch

from engine.tiers.copy import DeviceLost, Pairs, refused
from engine.tiers.pin import PinnedMemory, Ring

_T = TypeVar("_T")
_SAME_ADDRESSES = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM


class TorchAccelerator:
    """An `Accelerator`: copies go through a stream of their own where the device has streams."""

    def __init__(self, device: torch.device, name: str, pin_bytes: int | None = None) -> None:
        """`pin_bytes` of the host's memory may be registered, where the system sets a limit.

        Raises `DeviceLost` where torch sees the device and cannot run anything on it.
        """
        self.device, self.name = device, name
        _guarded(lambda: torch.ones(8, device=device).sum().item())  # a card that torch sees need not be one that it can use
        self._stream = _guarded(lambda: torch.Stream(device=device))
        self._pinned = PinnedMemory(_Cuda(device) if device.type == "cuda" else _Nothing(), pin_bytes)
        self._ring = Ring(self._buffer)
        self._has_same_addresses = _has_same_addresses(device)

    def free_bytes(self) -> int:
        free, _ = _guarded(lambda: torch.accelerator.get_memory_info(self.device))
        pooled = torch.accelerator.memory_reserved(self.device) - torch.accelerator.memory_allocated(self.device)
        return int(free + pooled)

    def take(self, nbytes: int) -> torch.Tensor:
        try:
            return _guarded(lambda: torch.empty(nbytes, dtype=torch.uint8, device=self.device))
        except torch.OutOfMemoryError as error:
            self.trim()
            raise refused(self.name, nbytes) from error

    def register(self, memory: torch.Tensor) -> bool:
        return self._pinned.register(memory)

    def reads(self, memory: torch.Tensor) -> bool:
        return self._has_same_addresses and self._pinned.has(memory)

    def release(self, memory: torch.Tensor) -> None:
        self._pinned.release(memory)

    def copy(self, pairs: Pairs) -> "_Copy":
        return _guarded(lambda: self._copy(pairs))

    def _copy(self, pairs: Pairs) -> "_Copy":
        self._stream.wait_stream(torch.accelerator.current_stream(self.device))
        begun, ended = _event(self.device), _event(self.device)
        with self._stream:
            begun.record(self._stream)
            for source, target in pairs:
                if self._pinned.has(source):
                    target.copy_(source, non_blocking=True)
                else:
                    self._ring.through(source, partial(self._from_buffer, target))
            ended.record(self._stream)
        return _Copy(self.device, begun, ended)

    def _from_buffer(self, target: torch.Tensor, buffer: torch.Tensor) -> Callable[[], object]:
        target.copy_(buffer, non_blocking=True)
        ended = torch.Event(self.device)
        ended.record(self._stream)
        return ended.synchronize

    def _buffer(self, nbytes: int) -> torch.Tensor:
        try:
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError:  # not even that much: copies from it wait then, which is slow and right
            return torch.empty(nbytes, dtype=torch.uint8)

    def time(self) -> "_Timing":
        return _guarded(lambda: _Timing(self.device))

    def trim(self) -> None:
        _guarded(torch.accelerator.empty_cache)


class _Cuda:
    """A `Registry`; ROCm answers to the same names."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]

    def add(self, address: int, nbytes: int) -> bool:
        if int(self._runtime.cudaHostRegister(address, nbytes, 0)) == 0:
            return True
        with suppress(RuntimeError):  # the runtime keeps the refusal, and torch would raise it with the next kernel
            torch.ones(1, device=self._device).add_(1)
        return False

    def remove(self, address: int) -> None:
        self._runtime.cudaHostUnregister(address)


class _Nothing:
    """A `Registry` where torch has no call for it."""

    def add(self, address: int, nbytes: int) -> bool:
        return False

    def remove(self, address: int) -> None: ...


def _has_same_addresses(device: torch.device) -> bool:
    """Whether a device finds registered memory where the host does. Torch has no word for it, NVIDIA's driver has (CUDA Driver
    API, cuDeviceGetAttribute); of others nothing is known."""
    if device.type != "cuda" or torch.version.hip:
        return False
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    number, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(number), device.index or 0):
        return False
    return not driver.cuDeviceGetAttribute(ctypes.byref(value), _SAME_ADDRESSES, number) and value.value == 1


class _Copy:
    """A `Copy`."""

    def __init__(self, device: torch.device, begun: torch.Event, ended: torch.Event) -> None:
        self._device, self._begun, self._ended = device, begun, ended

    def order(self) -> None:
        _guarded(lambda: torch.accelerator.current_stream(self._device).wait_event(self._ended))

    def finish(self) -> float:
        return _seconds(self._begun, self._ended)


class _Timing:
    """A `Timing`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._begun, self._ended = device, _event(device), _event(device)
        self._begun.record(torch.accelerator.current_stream(device))

    def stop(self) -> None:
        self._ended.record(torch.accelerator.current_stream(self._device))

    def seconds(self) -> float:
        return _seconds(self._begun, self._ended)


def _seconds(begun: torch.Event, ended: torch.Event) -> float:
    """Waits for the second."""
    _guarded(ended.synchronize)
    return _guarded(lambda: begun.elapsed_time(ended)) / 1e3


def _event(device: torch.device) -> torch.Event:
    return torch.Event(device, enable_timing=True)


def _guarded(use: Callable[[], _T]) -> _T:
    """What `use` gives. Torch tells a lost device by a plain `RuntimeError`; a lack of memory is none."""
    try:
        return use()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise DeviceLost(str(error).partition("\n")[0]) from error
