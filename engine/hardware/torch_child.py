"""What torch can use, as a short-lived child: `python -m engine.hardware.torch_child`. It starts the GPU's driver.

Every device adds up a small tensor, so that a card for which the build has no kernels is found here and not in a chat.
"""

import ctypes
import mmap
import os
import time
import zlib
from typing import Any

import psutil
import torch

from engine.hardware.child import answer

_CHUNK_BYTES = 256 << 20
_COPY_BYTES = 64 << 20
_MOST_PINNED = 32 << 30
_PIN_SECONDS = 8.0


def read_torch(torch: Any) -> dict[str, Any]:
    """{"devices": [...], "fault": why there are none, "pin": see `pin`}; `torch` is the module."""
    kind = "xpu" if getattr(torch.version, "xpu", None) else "mps" if torch.backends.mps.is_available() else "cuda"
    module = getattr(torch, kind)
    if kind == "mps":
        return {
            "devices": [
                {"kind": kind, "total": module.recommended_max_memory(), "is_integrated": True, "fault": _try(torch, kind)}
            ]
        }
    try:
        module.init()
    except (RuntimeError, AssertionError) as error:
        return {"devices": [], "fault": _first_line(error)}
    devices = [_device(torch, module, kind, index) for index in range(module.device_count())]
    facts: dict[str, Any] = {"devices": devices, "fault": "" if devices else "it lists no device"}
    usable = [device for device in devices if not device["fault"]]
    if kind == "cuda" and usable:
        facts["pin"] = pin(module.cudart(), torch, f"cuda:{usable[0]['index']}", psutil.virtual_memory().available // 2)
    return facts


def _device(torch: Any, module: Any, kind: str, index: int) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, "index": index, "name": "", "total": None, "free": None, "fault": ""}
    try:
        properties = module.get_device_properties(index)
        found |= {"name": properties.name, "total": properties.total_memory}
        found["is_integrated"] = bool(getattr(properties, "is_integrated", False))
        found["uuid"] = str(getattr(properties, "uuid", ""))
        parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
        if all(isinstance(part, int) for part in parts):
            domain, bus, device = parts
            found["address"] = f"{domain:04x}:{bus:02x}:{device:02x}.0"
        if hasattr(properties, "major"):
            found["capability"] = [properties.major, properties.minor]
        found["free"] = module.mem_get_info(index)[0]
    except (RuntimeError, AssertionError) as error:
        found["fault"] = _first_line(error)
    found["fault"] = found["fault"] or _try(torch, f"{kind}:{index}")
    return found


def _try(torch: Any, device: str) -> str:
    """Empty where the device can add; else what torch says."""
    try:
        total = int(torch.ones(1024, device=device).sum().item())
    except (RuntimeError, AssertionError) as error:
        return _first_line(error)
    return "" if total == 1024 else f"1024 ones added up to {total}"


def pin(runtime: Any, torch: Any, device: str, limit: int) -> dict[str, Any]:
    """Register memory with the GPU, chunk by chunk, until it is refused, or `limit` bytes, 32 GiB or 8 seconds are reached.

    {"bytes", "stop": "refused", "limit" or "time", "is_right"}: whether a copy through it came back as it was. WSL is known for
    small limits, and for copies that do nothing (../field: FreeToken #233, #291).
    """
    chunks: list[tuple[mmap.mmap, int]] = []
    stop, until = "limit", time.monotonic() + _PIN_SECONDS
    try:
        while (len(chunks) + 1) * _CHUNK_BYTES <= min(limit, _MOST_PINNED):
            memory = mmap.mmap(-1, _CHUNK_BYTES)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            if int(runtime.cudaHostRegister(address, _CHUNK_BYTES, 0)) != 0:
                stop = "refused"
                break
            chunks.append((memory, address))
            if time.monotonic() > until:
                stop = "time"
                break
        is_right = bool(chunks) and _copies_right(torch, device, chunks[-1][0])
    finally:
        for _, address in chunks:
            runtime.cudaHostUnregister(address)
    return {"bytes": len(chunks) * _CHUNK_BYTES, "stop": stop, "is_right": is_right}


def _copies_right(torch: Any, device: str, memory: mmap.mmap) -> bool:
    """There and back, compared by checksum. Random bytes: an untouched page on either side must not look right."""
    memory[:_COPY_BYTES] = os.urandom(_COPY_BYTES)
    here = torch.frombuffer(memory, dtype=torch.uint8, count=_COPY_BYTES)
    back = here.to(device, copy=True).cpu()
    return _checksum(back) == _checksum(here)


def _checksum(tensor: Any) -> int:
    return zlib.crc32((ctypes.c_char * _COPY_BYTES).from_address(tensor.data_ptr()))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


if __name__ == "__main__":
    answer(lambda: read_torch(torch))
