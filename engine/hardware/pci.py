"""Graphics devices as Linux lists them on the PCI bus: whose they are, which driver runs them, their link, AMD's memory."""

from dataclasses import dataclass

from engine.hardware.machine import GpuKind, PcieLink
from engine.hardware.system import System

_DEVICES = "/sys/bus/pci/devices"
_DISPLAY_CLASS = 0x03
_VENDORS = {0x10DE: GpuKind.NVIDIA, 0x1002: GpuKind.AMD, 0x8086: GpuKind.INTEL}  # others draw pictures only
_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids", "/usr/share/pci.ids")
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # by GT/s


@dataclass(frozen=True, slots=True)
class PciCard:
    """`address` is like 0000:01:00.0; the driver's name is empty where none runs it. `is_integrated` None: not known."""

    kind: GpuKind
    address: str
    name: str
    driver: str
    link: PcieLink
    vram_total: int | None
    vram_used: int | None
    is_integrated: bool | None

    @property
    def evidence(self) -> str:
        return f"{_DEVICES}/{self.address}"


def find_cards(system: System) -> list[PciCard]:
    """Empty too where the system has no such files."""
    return [card for address in system.names(_DEVICES) if (card := _card(system, address)) is not None]


def _card(system: System, address: str) -> PciCard | None:
    folder = f"{_DEVICES}/{address}"
    kind = _VENDORS.get(system.number(f"{folder}/vendor") or 0)
    if kind is None or (system.number(f"{folder}/class") or 0) >> 16 != _DISPLAY_CLASS:
        return None
    total = system.number(f"{folder}/mem_info_vram_total") or None
    used = system.number(f"{folder}/mem_info_vram_used")
    is_integrated = {GpuKind.NVIDIA: False, GpuKind.INTEL: address.startswith("0000:00:")}.get(kind)
    if kind is GpuKind.AMD:
        is_integrated = _is_apu(system, address)
    link = PcieLink(
        _generation(system.text(f"{folder}/current_link_speed")), system.number(f"{folder}/current_link_width") or None,
        _generation(system.text(f"{folder}/max_link_speed")), system.number(f"{folder}/max_link_width") or None,
    )  # fmt: skip
    driver = system.link(f"{folder}/driver").rpartition("/")[2]
    name = system.text(f"{folder}/product_name") or _name(system, folder, kind)
    return PciCard(kind, address, name, driver, PcieLink() if is_integrated else link, total, used, is_integrated)


def _is_apu(system: System, address: str) -> bool | None:
    """By the topology of AMD's compute driver: a node with both processor cores and graphics units shares its memory.

    None where that driver does not run. See kfd_topology.c of Linux.
    """
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    domain, bus, device, function = (int(part, 16) for part in address.replace(".", ":").split(":"))
    for node in system.names(nodes):
        lines = system.text(f"{nodes}/{node}/properties").splitlines()
        figures = {name: int(value) for name, _, value in (line.partition(" ") for line in lines) if value.isdigit()}
        is_it = figures.get("location_id") == bus << 8 | device << 3 | function and figures.get("domain", 0) == domain
        if is_it and figures.get("simd_count"):
            return figures.get("cpu_cores_count", 0) > 0
    return None


def _generation(speed: str) -> int | None:
    """'16.0 GT/s PCIe' -> 4."""
    try:
        return _GENERATIONS.get(float(speed.split()[0]))
    except (IndexError, ValueError):
        return None


def _name(system: System, folder: str, kind: GpuKind) -> str:
    """By the system's own list of PCI devices, else the two numbers."""
    vendor, device = (system.text(f"{folder}/{name}").removeprefix("0x").lower() for name in ("vendor", "device"))
    maker = {GpuKind.NVIDIA: "NVIDIA", GpuKind.AMD: "AMD", GpuKind.INTEL: "Intel"}[kind]
    is_inside = False
    for line in next((text for path in _IDS if (text := system.text(path))), "").splitlines():
        if not line.startswith(("\t", "#")):
            is_inside = line.startswith(vendor)
        elif is_inside and line.startswith(f"\t{device}  "):
            return f"{maker} {line.split('  ', 1)[1].strip()}"
    return f"{maker} graphics {vendor}:{device}"
