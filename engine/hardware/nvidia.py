"""NVIDIA's cards: what NVML and the PCI bus say, joined, and a sentence with its evidence for each way in which they fail."""

from typing import Any

from engine.hardware.child import Reply
from engine.hardware.machine import Gpu, GpuKind, Holder, PcieLink
from engine.hardware.pci import PciCard
from engine.hardware.system import System
from engine.hardware.wheel import Wheel

_MODULE = "/proc/driver/nvidia/version"
_NODE = "/dev/nvidiactl"
_DXG = "/dev/dxg"
_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # by CUDA's major version, see NVIDIA's "CUDA compatibility"
_WHOLE_BYTES = 1 << 50  # more than any card has: a failing driver's -1


def is_worth_asking(system: System, cards: list[PciCard]) -> bool:
    """Whether NVML may have something to say; without any trace of NVIDIA the child is not started."""
    if system.platform == "win32":
        return True
    return system.is_linux and (bool(cards) or any(system.has(path) for path in (_MODULE, _NODE, _DXG)))


def nvidia_gpus(system: System, cards: list[PciCard], reply: Reply, wheel: Wheel) -> tuple[list[Gpu], list[str]]:
    """Cards, in NVML's order, and notices where there is trouble with all of them."""
    if reply.fault or "fault" in reply.facts:
        trouble = _no_nvml(system, cards, reply)
        gpus = [_from_pci(card, trouble) for card in cards]
        return gpus, [trouble] if trouble and not gpus else []
    facts = reply.facts
    trouble = _too_old(facts, wheel)
    gpus, told = [], set()
    for index, device in enumerate(facts["devices"]):
        told.add(device.get("address", ""))
        gpus.append(_from_nvml(index, device, facts["driver"], trouble))
    unheard = [card for card in cards if card.address not in told]
    if "" in told and len(cards) == len(facts["devices"]):  # NVML lists it and does not say where it sits
        unheard = []
    for card in unheard:
        gpus.append(
            _from_pci(card, f"The PCI bus lists it ({card.evidence}), and NVIDIA's driver does not: restart the computer.")
        )
    notices = [] if gpus else ["NVIDIA's driver runs and lists no card (nvmlDeviceGetCount: 0)."]
    return gpus, notices


def _from_nvml(index: int, device: dict[str, Any], driver: str, trouble: str) -> Gpu:
    faults = device["faults"]
    if "name" not in device:
        text = f"NVIDIA's driver counts this card and does not reach it ({'; '.join(faults)}): restart the computer."
        return Gpu(f"NVIDIA card {index}", GpuKind.NVIDIA, driver=driver, trouble=text)
    total, free = device["total"], device["free"]
    evidence = next((fault for fault in faults if "MemoryInfo" in fault), f"{total} bytes in all, {free} free")
    if not total or free is None or not 0 <= free <= total < _WHOLE_BYTES:
        trouble = trouble or f"NVIDIA's driver does not tell its memory ({evidence}), so nothing can be planned on it."
        total = free = None
    lost = next((fault for fault in faults if "lost" in fault.lower()), "")
    if lost:
        trouble = f"The computer has lost the card ({lost}): check its power supply and seat, and restart."
    link = PcieLink(*(device[key] or None for key in ("generation_now", "width_now", "generation_most", "width_most")))
    capability = device["capability"]
    return Gpu(
        name=device["name"] or f"NVIDIA card {index}",
        kind=GpuKind.NVIDIA,
        uuid=device["uuid"],
        address=device["address"],
        vram_total=total,
        vram_free=free,
        vram_holders=tuple(Holder(str(name), int(nbytes), int(pid)) for name, nbytes, pid in device["holders"]),
        pcie=link,
        driver=driver,
        compute_capability=None if capability is None else (capability[0], capability[1]),
        trouble=trouble,
    )


def _from_pci(card: PciCard, trouble: str) -> Gpu:
    return Gpu(card.name, GpuKind.NVIDIA, address=card.address, pcie=card.link, driver=card.driver, trouble=trouble)


def _too_old(facts: dict[str, Any], wheel: Wheel) -> str:
    """A driver runs every build of its own major CUDA version and older ones."""
    needed = int(wheel.cuda.split(".")[0]) if wheel.cuda[:1].isdigit() else 0
    offered = facts["cuda"]
    if offered is None or not needed or offered[0] >= needed:
        return ""
    least = _LEAST_DRIVER.get(needed)
    update = f"update it to {least} or newer" if least else "update it"
    return (
        f"The NVIDIA driver {facts['driver']} is too old: it runs CUDA {offered[0]}.{offered[1]}, "
        f"and this build of torch ({wheel.version}) needs CUDA {wheel.cuda}: {update}."
    )


def _no_nvml(system: System, cards: list[PciCard], reply: Reply) -> str:
    """Why NVIDIA's management library gave nothing. Empty where there is no sign of a card either."""
    if reply.fault:
        return f"The probe of NVIDIA's driver {reply.fault}: restart the computer, or install the driver anew."
    kind, said = reply.facts["fault"], f"NVML: {reply.facts['text']}"
    loaded = _version(system)
    if system.is_container and not system.has(_NODE) and (cards or loaded):
        seen = f"the host has {'its driver ' + loaded if loaded else cards[0].name}"
        return f"This container was started without the graphics card: {seen}, and {_NODE} is absent. Start it with --gpus all."
    if kind == "LibRmVersionMismatch":
        return f"NVIDIA's driver was updated, and the old one still runs ({said}): restart the computer."
    if kind == "NoPermission":
        return f"This user may not ask NVIDIA's driver ({said}): check the permissions of {_NODE}."
    if kind == "DriverNotLoaded":
        return f"NVIDIA's driver is installed and not loaded ({said}): restart the computer; Secure Boot may refuse it."
    if kind != "LibraryNotFound":
        return f"NVIDIA's driver does not answer ({said}): restart the computer, or install the driver anew."
    if system.is_wsl:
        return f"WSL passes a graphics card on ({_DXG}), but no NVIDIA library ({said}): install NVIDIA's driver in Windows."
    if loaded:
        return f"NVIDIA's driver {loaded} is loaded, but its library is not installed ({said}): install the driver's libraries."
    if cards:
        runs = f"{cards[0].driver} runs it" if cards[0].driver else "no driver runs it"
        return f"NVIDIA's driver is not installed: {runs} ({cards[0].evidence}/driver). Install NVIDIA's own driver."
    if system.platform == "win32":
        return f"NVIDIA's driver was not found ({said}): if there is an NVIDIA card, install its driver."
    return ""


def _version(system: System) -> str:
    """Of the loaded kernel module: 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...' -> '580.65.06'."""
    words = system.text(_MODULE).partition("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and word.count(".") in (1, 2)), "")
