"""A computer as the probe found it → rows of words, each with its evidence where something is wrong. Pure; no Qt."""

from dataclasses import dataclass

from app.core.figures import format_bytes, format_count, format_rate
from engine.protocol import DriveFacts, DriveKind, Gpu, Link, Machine, MachineRates, PcieLink

_KINDS = {DriveKind.NVME: "NVMe", DriveKind.SATA: "SATA", DriveKind.USB: "USB", DriveKind.NETWORK: "Network drive",
          DriveKind.UNKNOWN: "Drive"}  # fmt: skip
_SLOW = {
    DriveKind.USB: "A USB drive: models that stream from it will be slow.",
    DriveKind.NETWORK: "A network drive: models that stream from it will be slow.",
}
GOES_ON = "Stoker goes on with processor, memory and disk."


@dataclass(frozen=True, slots=True)
class Fact:
    """`trouble` is a sentence with its evidence; empty where all is well."""

    title: str
    text: str
    detail: str = ""
    trouble: str = ""


def facts(machine: Machine) -> tuple[Fact, ...]:
    return (*_graphics(machine), _memory(machine), _processor(machine), *map(_drive, _drives(machine)))


def graphics_words(machine: Machine) -> str:
    """What the graphics cards mean for Stoker, in a sentence or two."""
    if any(gpu.is_usable for gpu in machine.gpus):
        return ""
    if machine.has_unified_memory:
        return f"The graphics part shares its memory with the processor, and this version does not use it yet. {GOES_ON}"
    reasons = [f"{gpu.name}: {gpu.trouble}" for gpu in machine.gpus if gpu.trouble and not gpu.is_integrated]
    return " ".join([*(reasons or machine.notices or ("No graphics card was found.",)), GOES_ON])


def short(machine: Machine) -> str:
    """For the list of steps: 'RTX 4070, 12.0 GB · 64.0 GB RAM · NVMe'."""
    cards = [gpu for gpu in machine.gpus if gpu.is_usable]
    words = [f"{_short_name(card.name)}, {format_bytes(card.vram_total or card.vram_free or 0)}" for card in cards]
    kinds = [_KINDS[drive.kind] for drive in machine.drives if drive.kind is not DriveKind.UNKNOWN]
    return " · ".join([*words, f"{format_bytes(machine.ram_total)} RAM", *dict.fromkeys(kinds)])


def pcie_words(link: PcieLink) -> str:
    """'PCIe 4.0 ×16', as wide as it can be here; empty where nobody tells."""
    generation, width = link.generation_most or link.generation_now, link.width_most or link.width_now
    parts = (f"{generation}.0" if generation else "", f"×{width}" if width else "")
    return " ".join(filter(None, ("PCIe", *parts))) if any(parts) else ""


def rate_rows(rates: MachineRates) -> tuple[Fact, ...]:
    """What was measured, one link or format a row."""
    names = {
        Link.VRAM: ("Graphics memory", "read by the card"), Link.PCIE: ("PCIe", "from memory to the card"),
        Link.RAM: ("Memory", "read by all cores together"), Link.DISK: ("Drive", _drive_note(rates)),
    }  # fmt: skip
    links = [Fact(names[link][0], f"{format_rate(gbps)} GB/s", names[link][1]) for link, gbps in rates.gbps.items()]
    kernels = " · ".join(f"{name} {format_rate(gbps)}" for name, gbps in rates.kernels.items())
    return (*links, *([Fact("Experts", kernels, "GB/s of weights by format, one token")] if kernels else []))


def rates_short(rates: MachineRates) -> str:
    return " · ".join(f"{words} {format_rate(rates.gbps[link])}" for link, words in _SHORT if link in rates.gbps) + " GB/s"


_SHORT = ((Link.VRAM, "VRAM"), (Link.PCIE, "PCIe"), (Link.RAM, "RAM"), (Link.DISK, "disk"))


def _drive_note(rates: MachineRates) -> str:
    return f"{rates.drive}, whole experts, past the system's cache" if rates.drive else "whole experts, past the system's cache"


def _graphics(machine: Machine) -> list[Fact]:
    if not machine.gpus:
        return [Fact("Graphics", "None that programs can compute on")]
    return [_card(gpu) for gpu in machine.gpus]


def _card(gpu: Gpu) -> Fact:
    if gpu.is_integrated:
        return Fact("Graphics", gpu.name, "shares the computer's memory, which is counted once", gpu.trouble)
    free = f"{format_bytes(gpu.vram_free)} free" if gpu.vram_free else ""
    total = f"of {format_bytes(gpu.vram_total)}" if gpu.vram_total else ""
    memory = " ".join(filter(None, (free, total))) or "memory not known"
    holders = [f"{format_bytes(one.nbytes)} by {one.program}" for one in gpu.vram_holders[:2]]
    taken = f"taken: {', '.join(holders)}" if holders else ""
    driver = f"driver {gpu.driver}" if gpu.driver and gpu.driver[0].isdigit() else ""
    trouble = gpu.trouble or ("" if gpu.vram_free else "It does not tell how much of its memory is free.")
    return Fact("Graphics", gpu.name, " · ".join(filter(None, (memory, pcie_words(gpu.pcie), driver, taken))), trouble)


def _memory(machine: Machine) -> Fact:
    text = f"{format_bytes(machine.ram_available)} free of {format_bytes(machine.ram_total)}"
    notes = []
    if machine.is_capped and machine.ram_limit is not None:
        notes.append(f"a container allows {format_bytes(machine.ram_limit)}")
    if machine.commit_left is not None:
        notes.append(f"the system promises {format_bytes(machine.commit_left)} more at most")
    return Fact("Memory", text, " · ".join(notes))


def _processor(machine: Machine) -> Fact:
    cpu = machine.cpu
    cores = format_count(cpu.physical_cores, "core") if cpu.physical_cores else "number of cores not known"
    if cpu.performance_cores and cpu.efficiency_cores:
        cores += f" ({cpu.performance_cores} fast, {cpu.efficiency_cores} efficient)"
    best = cpu.isa[-1].replace("_", " ").upper() if cpu.isa and cpu.isa[-1] != "portable" else ""
    nodes = f"{cpu.numa_nodes} memory nodes" if cpu.numa_nodes > 1 else ""
    quota = f"{cpu.quota:g} of them may be used" if cpu.quota else ""
    return Fact("Processor", cpu.name or "name not known", " · ".join(filter(None, (cores, best, nodes, quota))))


def _drives(machine: Machine) -> list[DriveFacts]:
    """Each once, although several folders may lie on it."""
    return list({(drive.device, drive.mount): drive for drive in reversed(machine.drives)}.values())[::-1]


def _drive(drive: DriveFacts) -> Fact:
    free = f"{format_bytes(drive.free_bytes)} free" if drive.free_bytes is not None else "free space not known"
    total = f"of {format_bytes(drive.total_bytes)}" if drive.total_bytes else ""
    name = " · ".join(filter(None, (_KINDS[drive.kind], drive.device)))
    read_only = "Nothing can be written on it, so no model can be downloaded to it."
    trouble = read_only if drive.is_read_only else _SLOW.get(drive.kind, "")
    return Fact("Drive", f"{free} {total}".strip(), f"{name}, for {drive.folder}", trouble)


def _short_name(name: str) -> str:
    for word in ("NVIDIA ", "GeForce ", "AMD ", "Radeon "):
        name = name.replace(word, "")
    return name.removesuffix(" Laptop GPU")
