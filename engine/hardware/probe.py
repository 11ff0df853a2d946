"""Looks at this computer once. Imports no tensor library; what could crash a driver runs in a child."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from engine.hardware.cpu import read_cpu
from engine.hardware.drive import drive_facts
from engine.hardware.gpus import find_gpus, pinning_note
from engine.hardware.machine import GpuKind, Machine
from engine.hardware.memory import locked_limit_note, read_memory
from engine.hardware.system import System


def probe(system: System | None = None) -> Machine:
    """Memory and processor, in milliseconds. Raises `EngineError` where the memory's size cannot be read."""
    system = system or System()
    memory = read_memory(system)
    return Machine(
        memory.total,
        memory.available,
        memory.limit is not None,
        memory.limit,
        memory.commit_left,
        system=system.name,
        cpu=read_cpu(system),
    )


def probe_all(folders: Iterable[Path] = (), system: System | None = None) -> Machine:
    """Graphics devices and the drives under `folders` too, in seconds where there is a device to try."""
    system = system or System()
    gpus, notices, pinning = find_gpus(system)
    pinnable, note = pinning_note(pinning, locked_limit_note(system))
    drives = tuple(drive_facts(folder, system.path("/sys")) for folder in dict.fromkeys(folders))
    is_unified = any(gpu.kind is GpuKind.APPLE for gpu in gpus)
    return replace(
        probe(system),
        pinnable=pinnable,
        pinnable_note=note,
        has_unified_memory=is_unified,
        gpus=gpus,
        drives=drives,
        notices=notices,
    )
