"""Every graphics device of this computer: vendors' tools, the PCI bus, torch in a child and environment variables, joined.

A device that cannot be used stays in the list, with the reason.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from engine.hardware.cpu import sysctl
from engine.hardware.machine import Gpu, GpuKind
from engine.hardware.masks import Mask, find_mask
from engine.hardware.nvidia import is_worth_asking, nvidia_gpus
from engine.hardware.pci import PciCard, find_cards
from engine.hardware.system import System
from engine.hardware.wheel import Wheel, read_wheel
from engine.units import format_bytes

_SET_UP = "python3 installers/start.py --torch"
_DXG = "/dev/dxg"


def find_gpus(system: System) -> tuple[tuple[Gpu, ...], tuple[str, ...], dict[str, Any]]:
    """Devices, notices, and what torch found out about registering memory (empty where it was not asked)."""
    cards, wheel = find_cards(system), read_wheel(system.wheel_text())
    nvidia_cards = [card for card in cards if card.kind is GpuKind.NVIDIA]
    gpus: list[Gpu] = []
    notices: list[str] = []
    if is_worth_asking(system, nvidia_cards):
        gpus, notices = nvidia_gpus(system, nvidia_cards, system.ask("nvml"), wheel)
    gpus += [_from_pci(system, card) for card in cards if card.kind is not GpuKind.NVIDIA]
    if system.platform == "darwin" and system.architecture == "arm64":
        gpus.append(Gpu(sysctl(system, "machdep.cpu.brand_string") or "Apple GPU", GpuKind.APPLE, is_integrated=True))
    gpus = [_with_wheel(system, gpu, wheel) for gpu in gpus]
    pinning: dict[str, Any] = {}
    if any(not gpu.trouble for gpu in gpus):
        gpus, pinning = _ask_torch(system, gpus)
    if not gpus:
        notices = notices or [_nothing(system)]
    return tuple(gpus), tuple(notices), pinning


def _from_pci(system: System, card: PciCard) -> Gpu:
    """AMD's and Intel's."""
    total, used = card.vram_total, card.vram_used
    is_told = total is not None and used is not None and used <= total
    gpu = Gpu(
        card.name, card.kind, address=card.address, pcie=card.link, driver=card.driver,
        is_integrated=bool(card.is_integrated),
        vram_total=total if is_told and not card.is_integrated else None,
        vram_free=total - used if is_told and total is not None and used is not None and not card.is_integrated else None,
    )  # fmt: skip
    if not card.driver:
        return replace(gpu, trouble=f"No driver runs it ({card.evidence}/driver is absent): install its driver.")
    if card.kind is GpuKind.AMD and not system.has("/dev/kfd"):
        if system.is_container:
            text = (
                "This container was started without it: /dev/kfd is absent. Start it with --device /dev/kfd --device /dev/dri."
            )
            return replace(gpu, trouble=text)
        return replace(gpu, trouble="AMD's compute driver does not run (/dev/kfd is absent): install the amdgpu driver.")
    return gpu


def _with_wheel(system: System, gpu: Gpu, wheel: Wheel) -> Gpu:
    """The reason where this build of torch has nothing for such a device, and the remedy."""
    if gpu.trouble or (gpu.is_integrated and gpu.kind is not GpuKind.APPLE):
        return gpu
    if not wheel.version:
        return replace(gpu, trouble="torch is not installed, so nothing can compute on it: run python3 installers/start.py.")
    built = f"torch {wheel.version} was built without"
    if gpu.kind is GpuKind.NVIDIA and not wheel.cuda:
        return replace(gpu, trouble=f"{built} CUDA, so it stays unused: {_SET_UP} cuda")
    if gpu.kind is GpuKind.AMD and not wheel.hip:
        if not system.is_linux:
            return replace(gpu, trouble=f"{built} ROCm, and there is no build with it for {system.name}: it stays unused.")
        return replace(gpu, trouble=f"{built} ROCm, so it stays unused: {_SET_UP} rocm")
    if gpu.kind is GpuKind.INTEL and not wheel.xpu:
        return replace(gpu, trouble=f"{built} Intel's XPU, which Stoker's set-up does not offer: it stays unused.")
    return gpu


def _ask_torch(system: System, gpus: list[Gpu]) -> tuple[list[Gpu], dict[str, Any]]:
    reply = system.ask("torch_child")
    if reply.fault:
        text = f"The probe of torch {reply.fault}, so it is not used: restart the computer, or install the driver anew."
        return [gpu if gpu.trouble or _is_left_out(gpu) else replace(gpu, trouble=text) for gpu in gpus], {}
    seen, fault = reply.facts["devices"], reply.facts.get("fault", "")
    joined = [gpu if gpu.trouble or _is_left_out(gpu) else _joined(system, gpu, gpus, seen, fault) for gpu in gpus]
    return joined, reply.facts.get("pin", {})


def _is_left_out(gpu: Gpu) -> bool:
    """Sharing RAM with the processor and drawing the screen: torch is not asked about it."""
    return gpu.is_integrated and gpu.kind is not GpuKind.APPLE


def _joined(system: System, gpu: Gpu, gpus: list[Gpu], seen: list[dict[str, Any]], fault: str) -> Gpu:
    device = _match(gpu, gpus, seen)
    if device is None:
        mask = find_mask(gpu.kind, system.environ)
        if mask is not None and _may_hide(mask, gpu, gpus):
            return replace(gpu, trouble=mask.sentence)
        said = f" ({fault})" if fault else f" (it lists {len(seen)} of {len(gpus)} devices)"
        return replace(gpu, trouble=f"torch does not see it{said}.")
    if device["fault"]:
        capability = ".".join(map(str, gpu.compute_capability or device.get("capability") or ()))
        which = f"compute capability {capability}: " if capability else ""
        return replace(gpu, trouble=f"torch cannot compute on it ({which}{device['fault']}).")
    if gpu.kind is GpuKind.APPLE:
        return gpu
    is_integrated = gpu.is_integrated or bool(device.get("is_integrated"))
    total, free = gpu.vram_total or device["total"], gpu.vram_free if gpu.vram_free is not None else device["free"]
    if is_integrated or not total or free is None or not 0 <= free <= total:
        total = free = None
    trouble = "" if is_integrated or total else "Nobody tells its memory, so nothing can be planned on it."
    name = gpu.name if ":" not in gpu.name else device["name"] or gpu.name
    return replace(gpu, name=name, is_integrated=is_integrated, vram_total=total, vram_free=free, trouble=trouble)


def _match(gpu: Gpu, gpus: list[Gpu], seen: list[dict[str, Any]]) -> dict[str, Any] | None:
    """torch's device for this one: by its UUID or its place on the bus, or because each has only one of the kind."""
    for device in seen:
        uuid, address = device.get("uuid", ""), device.get("address", "")
        if (uuid and uuid in gpu.uuid) or (address and address == gpu.address):
            return device
    alike = [other for other in gpus if other.kind is gpu.kind]
    is_named = any(device.get("uuid") or device.get("address") for device in seen) and (gpu.uuid or gpu.address)
    return seen[0] if len(alike) == len(seen) == 1 and not is_named else None


def _may_hide(mask: Mask, gpu: Gpu, gpus: Iterable[Gpu]) -> bool:
    same = [other for other in gpus if other.kind is gpu.kind]
    return mask.hides(same.index(gpu), gpu.uuid, len(same) == 1) is not False


def _nothing(system: System) -> str:
    if system.is_wsl:
        return f"WSL passes no graphics card on ({_DXG} is absent): update Windows' driver and run wsl --update."
    if system.is_linux:
        where = "the PCI bus lists no device of NVIDIA, AMD or Intel that computes (/sys/bus/pci/devices)"
        return f"There is no graphics card: {where}."
    return "No graphics card that Stoker knows was found."


def pinning_note(pinning: dict[str, Any], locked_note: str) -> tuple[int | None, str]:
    """Bytes that may be registered with the GPU, and how that was found out."""
    if not pinning:
        limit = f"; {locked_note} for programs without one" if locked_note else ""
        return None, f"Not probed: no graphics card's runtime is there to register memory{limit}."
    nbytes = int(pinning["bytes"])
    if nbytes and not pinning["is_right"]:
        return 0, f"A copy through {format_bytes(nbytes)} of registered memory came back different, so none is used."
    ends = {"refused": "more was refused", "limit": "the probe asked for no more", "time": "the probe's time was over"}
    return nbytes, f"{format_bytes(nbytes)} were registered and a copy came back right; {ends[pinning['stop']]}."
