"""`stoker probe`: what this computer has, as the plan sees it. A thin front end, like `engine.cli`."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.hardware.machine import Cpu, DriveFacts, DriveKind, Gpu, Machine, PcieLink
from engine.hardware.probe import probe_all
from engine.store.library import data_folder, models_folder, watched_folders
from engine.store.records import Records
from engine.units import format_bytes

Run = Callable[[argparse.Namespace], int]
_DRIVES = {DriveKind.NVME: "NVMe", DriveKind.SATA: "SATA", DriveKind.USB: "USB", DriveKind.NETWORK: "network"}


def add_probe(verbs: Any, add_verb: Callable[[Any, str, str, Run], argparse.ArgumentParser]) -> None:
    verb = add_verb(verbs, "probe", "show what this computer has: memory, processor, graphics cards, drives", _probe)
    verb.add_argument("folders", nargs="*", type=Path, metavar="DIR", help="models folders (those that Stoker looks into)")


def _probe(options: argparse.Namespace) -> int:
    folders = options.folders or watched_folders(models_folder(), Records(data_folder()))
    if missing := next((folder for folder in options.folders if not folder.is_dir()), None):
        text = f"{missing} is {'no folder' if missing.exists() else 'not there'}."
        raise EngineError("probe.no_folder", text, "Give a folder on the drive in question.")
    machine = probe_all([folder.absolute() for folder in folders])
    if options.json:
        print(json.dumps(dataclasses.asdict(machine), allow_nan=False))
        return 0
    print("\n".join(f"{label:10} {text}".rstrip() for label, text in rows(machine)))
    for notice in machine.notices:
        print(f"\n{notice}")
    return 0


def rows(machine: Machine) -> Iterator[tuple[str, str]]:
    """(label, text) of each line; the label is empty where a line goes on."""
    yield "System", machine.system
    yield "Processor", cpu_text(machine.cpu)
    yield "Memory", memory_text(machine)
    yield "", machine.pinnable_note
    for gpu in machine.gpus:
        yield "Graphics", gpu_text(gpu)
        if gpu.vram_holders:
            yield "", "held by " + ", ".join(f"{one.program} ({format_bytes(one.nbytes)})" for one in gpu.vram_holders[:5])
        if gpu.trouble:
            yield "", gpu.trouble
        elif gpu.is_usable:
            yield "", "Stoker does not compute on graphics cards yet."
    for drive in machine.drives:
        yield "Drive", drive_text(drive)


def cpu_text(cpu: Cpu) -> str:
    cores = f"{cpu.physical_cores} cores" if cpu.physical_cores else "cores not told"
    if cpu.performance_cores and cpu.efficiency_cores:
        cores += f" ({cpu.performance_cores} performance, {cpu.efficiency_cores} efficiency)"
    parts = [cpu.name or "Name not told", cores]
    if cpu.logical_cores and cpu.logical_cores != cpu.physical_cores:
        parts.append(f"{cpu.logical_cores} threads")
    if cpu.numa_nodes > 1:
        parts.append(f"{cpu.numa_nodes} memory nodes")
    if cpu.quota is not None:
        parts.append(f"{cpu.quota:.4g} of them allowed here")
    if cpu.isa:
        parts.append(f"{cpu.isa[-1]} kernels")
    return ", ".join(parts)


def memory_text(machine: Machine) -> str:
    parts = [f"{format_bytes(machine.ram_total)}, {format_bytes(machine.ram_available)} available"]
    if machine.ram_limit is not None:
        parts.append(f"{format_bytes(machine.ram_limit)} is what this container allows")
    if machine.commit_left is not None:
        parts.append(f"{format_bytes(machine.commit_left)} may still be promised (commit limit)")
    return "; ".join(parts)


def gpu_text(gpu: Gpu) -> str:
    if gpu.is_integrated:
        memory = "shares the RAM"
    elif gpu.vram_total is None or gpu.vram_free is None:
        memory = "memory not told"
    else:
        memory = f"{format_bytes(gpu.vram_total)}, {format_bytes(gpu.vram_free)} free"
    capability = ".".join(map(str, gpu.compute_capability or ()))
    parts = [memory, _pcie_text(gpu.pcie), f"compute capability {capability}" if capability else ""]
    return f"{gpu.name}: " + ", ".join(filter(None, [*parts, f"driver {gpu.driver}" if gpu.driver else ""]))


def _pcie_text(link: PcieLink) -> str:
    """'PCIe 4.0 x16', with what it has fallen back to while idle, or what its slot leaves of it."""
    if link.generation_most is None or link.width_most is None:
        return ""
    most, now = (link.generation_most, link.width_most), (link.generation_now, link.width_now)
    fallen = f" ({now[0]}.0 x{now[1]} now)" if None not in now and now != most else ""
    return f"PCIe {most[0]}.0 x{most[1]}{fallen}"


def drive_text(drive: DriveFacts) -> str:
    if drive.free_bytes is None or drive.total_bytes is None:
        space = "its space is not told"
    else:
        space = f"{format_bytes(drive.free_bytes)} of {format_bytes(drive.total_bytes)} free"
    where = f"{drive.device} ({drive.mount})" if drive.device not in ("", drive.mount) else drive.mount
    parts = [where, _DRIVES.get(drive.kind, ""), drive.filesystem, space, "read-only" if drive.is_read_only else ""]
    return f"{drive.folder}: " + ", ".join(filter(None, parts))
