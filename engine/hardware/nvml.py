"""What NVIDIA's management library tells, as a short-lived child: `python -m engine.hardware.nvml`.

Each call may fail alone: what it would have told is then absent, and `faults` says why.
"""

import importlib
from collections.abc import Callable
from typing import Any

import psutil

from engine.hardware.child import answer


def read_nvml(nvml: Any, name_of: Callable[[int], str]) -> dict[str, Any]:
    """`nvml` is the module pynvml; `name_of` the program of a process id.

    {"driver", "cuda": [major, minor], "devices", "faults"}, or {"fault": its kind, "text"} where it does not start.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"fault": _kind(error), "text": str(error)}
    call = _Calls(nvml)
    facts: dict[str, Any] = {"driver": call("nvmlSystemGetDriverVersion") or ""}
    version = call("nvmlSystemGetCudaDriverVersion")
    facts["cuda"] = [version // 1000, version % 1000 // 10] if version else None
    count = call("nvmlDeviceGetCount") or 0
    facts["devices"] = [_device(nvml, index, name_of) for index in range(count)]
    return facts | {"faults": call.faults}


def _device(nvml: Any, index: int, name_of: Callable[[int], str]) -> dict[str, Any]:
    call = _Calls(nvml)
    handle = call("nvmlDeviceGetHandleByIndex", index)
    found: dict[str, Any] = {"faults": call.faults}
    if handle is None:
        return found
    memory, pci = call("nvmlDeviceGetMemoryInfo", handle), call("nvmlDeviceGetPciInfo", handle)
    capability = call("nvmlDeviceGetCudaComputeCapability", handle)
    return found | {
        "name": call("nvmlDeviceGetName", handle) or "",
        "uuid": call("nvmlDeviceGetUUID", handle) or "",
        "address": _address(pci.busId) if pci is not None else "",
        "total": None if memory is None else memory.total,
        "free": None if memory is None else memory.free,
        "holders": _holders(call, handle, name_of),
        "generation_now": call("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "width_now": call("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "generation_most": call("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "width_most": call("nvmlDeviceGetMaxPcieLinkWidth", handle),
        "capability": None if capability is None else list(capability),
    }


class _Calls:
    """Calls by name; None where one fails, with the reason in `faults`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.faults: list[str] = []

    def __call__(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except (self._nvml.NVMLError, AttributeError, UnicodeDecodeError) as error:  # old libraries lack calls
            self.faults.append(f"{name}: {error}")
            return None


def _holders(call: _Calls, handle: Any, name_of: Callable[[int], str]) -> list[list[Any]]:
    """[program, bytes, process id], the largest first. Windows' display driver counts none of them: those are left out."""
    kinds = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    bytes_of = {process.pid: process.usedGpuMemory for kind in kinds for process in call(kind, handle) or []}
    found = [[name_of(pid), nbytes, pid] for pid, nbytes in bytes_of.items() if nbytes]
    return sorted(found, key=lambda holder: -int(holder[1]))


def _address(bus_id: str | bytes) -> str:
    """'00000000:01:00.0' -> '0000:01:00.0', as Linux writes it."""
    text = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else bus_id
    domain, _, rest = text.partition(":")
    return f"{domain[-4:]}:{rest}".lower()


def _kind(error: Exception) -> str:
    return type(error).__name__.removeprefix("NVMLError_")


def _name_of(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return f"process {pid}"


if __name__ == "__main__":
    answer(lambda: read_nvml(importlib.import_module("pynvml"), _name_of))
