"""What the cgroups around this process allow, versions 1 and 2, nested to any depth."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.hardware.system import System

_ROOT = "/sys/fs/cgroup"
_FILES = {  # limits, and what is used
    1: ("memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.high", "memory.current"),
}
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


@dataclass(frozen=True, slots=True)
class MemoryCap:
    """Bytes that the tightest cgroup allows, and bytes that are left in the one with the least left."""

    limit: int
    room: int


def memory_cap(system: System) -> MemoryCap | None:
    """None where there is no limit.

    A cgroup's soft limit counts like its hard one: whoever lowers it asks for memory before the system takes a process instead.

    Page cache counts as used but is given back under pressure, so inactive file pages are added to the room.
    """
    caps = [cap for folder, version in _folders(system, "memory") if (cap := _cap(system, folder, version)) is not None]
    if not caps:
        return None
    return MemoryCap(min(cap.limit for cap in caps), min(cap.room for cap in caps))


def cpu_quota(system: System) -> float | None:
    """CPUs' worth of time that the tightest cgroup grants, or None where there is no limit."""
    quotas = [quota for folder, _ in _folders(system, "cpu") if (quota := _quota(system, folder)) is not None]
    return min(quotas, default=None)


def _folders(system: System, controller: str) -> Iterator[tuple[str, int]]:
    """The process's cgroup and all its parents, with the cgroup version."""
    for line in system.text("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        relative = PurePosixPath(path.lstrip("/"))
        if not number.isdigit():
            continue
        if controllers == "":
            roots, version = [_ROOT, f"{_ROOT}/unified"], 2
        elif controller in controllers.split(","):
            roots, version = [f"{_ROOT}/{name}" for name in dict.fromkeys((controller, controllers))], 1
        else:
            continue
        yield from ((f"{root}/{part}", version) for root in roots for part in (relative, *relative.parents))


def _cap(system: System, folder: str, version: int) -> MemoryCap | None:
    *limit_names, used_name = _FILES[version]
    found = [system.number(f"{folder}/{name}") for name in limit_names]
    limits = [limit for limit in found if limit is not None and limit < _UNLIMITED]
    used = system.number(f"{folder}/{used_name}")
    if not limits or used is None:
        return None
    return MemoryCap(min(limits), max(0, min(limits) - used + _inactive_file(system, folder)))


def _inactive_file(system: System, folder: str) -> int:
    lines = system.text(f"{folder}/memory.stat").splitlines()
    figures = dict(line.split(maxsplit=1) for line in lines if " " in line)
    found = figures.get("total_inactive_file", figures.get("inactive_file", "0"))
    return int(found) if found.isdigit() else 0


def _quota(system: System, folder: str) -> float | None:
    words = system.text(f"{folder}/cpu.max").split()
    if not words:
        words = [system.text(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period")]
    try:
        quota, period = map(int, words)
    except ValueError:  # "max"
        return None
    return quota / period if quota > 0 and period > 0 else None
