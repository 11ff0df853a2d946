"""Facts about this computer, frozen once probed. Nothing here looks anything up.

Whatever nobody could find out is None (of a number) or empty (of a name), never a default figure.
"""

from dataclasses import dataclass
from enum import StrEnum


class GpuKind(StrEnum):
    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"


class DriveKind(StrEnum):
    NVME = "nvme"
    SATA = "sata"
    USB = "usb"
    NETWORK = "network"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class PcieLink:
    """`now` may be lower than `most`: cards fall back while idle, and a slot may be narrower than its card."""

    generation_now: int | None = None
    width_now: int | None = None
    generation_most: int | None = None
    width_most: int | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds some of a card's memory."""

    program: str
    nbytes: int
    pid: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. VRAM is the card's own memory: of an integrated one, and of Apple's, it is a share of RAM and counts as none.

    `trouble` is empty where programs can compute on it, else one sentence with its evidence that says why not.
    """

    name: str
    kind: GpuKind
    uuid: str = ""
    vram_total: int | None = None
    vram_free: int | None = None
    vram_holders: tuple[Holder, ...] = ()  # the largest first
    is_integrated: bool = False
    pcie: PcieLink = PcieLink()
    driver: str = ""
    compute_capability: tuple[int, int] | None = None
    trouble: str = ""
    address: str = ""  # on the PCI bus, such as 0000:01:00.0

    @property
    def is_usable(self) -> bool:
        """It can compute, and has memory of its own whose free part is known."""
        return not self.trouble and not self.is_integrated and bool(self.vram_free)


@dataclass(frozen=True, slots=True)
class Cpu:
    """`quota` is how many CPUs' worth of time a container or this process's affinity allows; None where that is all."""

    name: str = ""
    physical_cores: int | None = None
    logical_cores: int | None = None
    performance_cores: int | None = None  # None where all cores are alike
    efficiency_cores: int | None = None
    isa: tuple[str, ...] = ()  # tiers of the kernels that it can run, the best last
    numa_nodes: int = 1
    quota: float | None = None


@dataclass(frozen=True, slots=True)
class DriveFacts:
    """The drive under a models folder."""

    folder: str
    device: str = ""
    mount: str = ""
    kind: DriveKind = DriveKind.UNKNOWN
    filesystem: str = ""
    free_bytes: int | None = None
    total_bytes: int | None = None
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """`ram_available` is what this process may still take: free memory, or less where a cgroup or the commit limit caps it."""

    ram_total: int
    ram_available: int
    is_capped: bool  # a cgroup allows less than the machine has
    ram_limit: int | None = None  # the tightest cgroup's; None where there is none
    commit_left: int | None = None  # bytes that may still be promised (Windows, Linux without overcommit); None: no such limit
    pinnable: int | None = None  # bytes that a GPU runtime may register; None where it was not probed
    pinnable_note: str = ""  # how that was found out, or why not
    has_unified_memory: bool = False  # GPU and CPU share the RAM (Apple)
    system: str = ""  # "Linux", "Windows", "macOS", "WSL"
    cpu: Cpu = Cpu()
    gpus: tuple[Gpu, ...] = ()
    drives: tuple[DriveFacts, ...] = ()
    notices: tuple[str, ...] = ()  # sentences for a person on what no single device has: no card, no driver, no library
