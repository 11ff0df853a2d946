"""RAM: what there is, what this process may still take, and what may be locked. Imports no tensor library."""

import ctypes
from dataclasses import dataclass
from typing import Any

import psutil

from engine.errors import EngineError
from engine.hardware.cgroup import memory_cap
from engine.hardware.system import System

_KIB = 1024
_NO_OVERCOMMIT = 2  # of /proc/sys/vm/overcommit_memory: more than the commit limit is refused


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; the last two are None where the system has no such limit."""

    total: int
    available: int
    limit: int | None
    commit_left: int | None


def read_memory(system: System) -> Memory:
    """Raises `EngineError` where the system does not tell how much there is."""
    total, available = _meminfo(system) if system.is_linux else _by_psutil(system)
    if not total or available is None:
        text = f"The size of the memory cannot be read: the system says {total} bytes in all, {available} available."
        raise EngineError("probe.memory", text, "Nothing can be planned without it; please report this with your system.")
    cap, commit_left = memory_cap(system), _commit_left(system)
    if cap is not None and cap.limit >= total:
        cap = None
    rooms = [total, available, *([] if cap is None else [cap.room]), *([] if commit_left is None else [commit_left])]
    return Memory(total, min(rooms), None if cap is None else cap.limit, commit_left)


def locked_limit_note(system: System) -> str:
    """What a program may keep in RAM without a GPU runtime (RLIMIT_MEMLOCK); empty where the system does not tell."""
    for line in system.text("/proc/self/limits").splitlines():
        if line.startswith("Max locked memory"):
            soft = line.split()[3]
            return f"RLIMIT_MEMLOCK is {soft} bytes" if soft.isdigit() else f"RLIMIT_MEMLOCK is {soft}"
    return ""


def _meminfo(system: System) -> tuple[int, int | None]:
    found = _fields(system)
    available = found.get("MemAvailable")
    if available is None and "MemFree" in found:  # kernels before 3.14
        available = found["MemFree"] + found.get("Buffers", 0) + found.get("Cached", 0)
    return found.get("MemTotal", 0), available


def _fields(system: System) -> dict[str, int]:
    """/proc/meminfo in bytes."""
    found: dict[str, int] = {}
    for line in system.text("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (_KIB if words[1:] == ["kB"] else 1)
    return found


def _by_psutil(system: System) -> tuple[int, int | None]:
    tool: Any = system.psutil
    memory = tool.virtual_memory()
    return memory.total, memory.available


def _commit_left(system: System) -> int | None:
    if system.platform == "win32":
        return _windows_commit_left()
    if system.number("/proc/sys/vm/overcommit_memory") != _NO_OVERCOMMIT:
        return None
    found = _fields(system)
    if "CommitLimit" not in found or "Committed_AS" not in found:
        return None
    return max(0, found["CommitLimit"] - found["Committed_AS"])


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = [
        ("length", ctypes.c_uint32), ("load", ctypes.c_uint32), ("total_physical", ctypes.c_uint64),
        ("available_physical", ctypes.c_uint64), ("total_page_file", ctypes.c_uint64), ("available_page_file", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64), ("available_virtual", ctypes.c_uint64), ("available_extended", ctypes.c_uint64),
    ]  # fmt: skip


def _windows_commit_left() -> int | None:
    """RAM and page file that may still be promised to this process."""
    library: Any = getattr(ctypes, "windll", None)
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if library is None or not library.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return int(status.available_page_file)


def held_bytes(pid: int) -> int:
    """Memory that comes free when a process ends; 0 where it has ended, or does not tell."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError, ValueError):
        return 0
