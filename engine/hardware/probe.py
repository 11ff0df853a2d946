"""Looks at this computer once. Reads the operating system's own figures; imports no tensor library and starts no driver."""

from pathlib import Path

import psutil

from engine.hardware.machine import Machine

_FILES = {  # limits, and what is used
    1: ("memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.high", "memory.current"),
}
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


def probe(cgroup_root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Machine:
    memory = psutil.virtual_memory()
    room = cgroup_room(cgroup_root, own)
    available = memory.available if room is None else min(memory.available, room)
    return Machine(memory.total, available, room is not None)


def cgroup_room(root: Path, own: Path) -> int | None:
    """Bytes that the tightest memory cgroup around this process still allows, or None where there is no limit.

    A cgroup's soft limit counts like its hard one: whoever lowers it asks for memory before the system takes a process instead.

    Page cache counts as used but is given back under pressure, so inactive file pages are added to the room.
    """
    rooms = [room for folder, version in _memory_cgroups(root, own) if (room := _room(folder, version)) is not None]
    return min(rooms, default=None)


def _memory_cgroups(root: Path, own: Path) -> list[tuple[Path, int]]:
    """The process's memory cgroup and all its parents, with the cgroup version."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders: list[tuple[Path, int]] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = Path(path.lstrip("/"))
        if controllers == "":
            folders += [(root / part, 2) for part in (relative, *relative.parents)]
        elif "memory" in controllers.split(","):
            folders += [(root / "memory" / part, 1) for part in (relative, *relative.parents)]
    return folders


def _room(folder: Path, version: int) -> int | None:
    *limit_names, used_name = _FILES[version]
    limits = [limit for name in limit_names if (limit := _number(folder / name)) is not None and limit < _UNLIMITED]
    used = _number(folder / used_name)
    if not limits or used is None:
        return None
    return max(0, min(limits) - used + _inactive_file(folder))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _inactive_file(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    figures = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(figures.get("total_inactive_file", figures.get("inactive_file", "0")))
