"""The drive under a path: its name for messages, and whether it is slow by nature. Reads the system's own tables."""

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afpfs", "ceph", "9p", "fuse.sshfs", "fuse.rclone", "davfs"}
)


@dataclass(frozen=True, slots=True)
class Drive:
    """`device` and `mount` as the system names them; empty where it does not say."""

    device: str = ""
    mount: str = ""
    is_network: bool = False
    is_usb: bool = False

    @property
    def label(self) -> str:
        """For the middle of a sentence: "the drive /dev/sda1 (/media/usb)"."""
        name = f"{self.device} ({self.mount})" if self.device not in ("", self.mount) else self.mount
        return f"the drive {name}".rstrip()

    @property
    def notice(self) -> str:
        """One sentence where reading experts from here will be slow; else empty."""
        kind = "a network drive" if self.is_network else "a USB drive" if self.is_usb else ""
        if not kind:
            return ""
        return f"The model lies on {kind}, {self.label.removeprefix('the drive ')}: copy it to an internal one for more speed."


def drive_of(path: Path, sys_root: Path = Path("/sys")) -> Drive:
    """Never raises, and touches neither the path nor the drive: either may be gone or hang."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except (OSError, RuntimeError):
        return Drive()
    absolute = Path(os.path.abspath(path))
    around = [mount for mount in mounts if absolute.is_relative_to(mount.mountpoint)]
    if not around:
        return Drive()
    found = max(reversed(around), key=lambda mount: len(mount.mountpoint))  # of two on one folder the later is on top
    is_network = found.fstype.lower() in _NETWORK or found.device.startswith(("//", "\\\\"))
    return Drive(found.device, found.mountpoint, is_network, not is_network and _is_usb(found.device, sys_root))


def _is_usb(device: str, sys_root: Path) -> bool:
    """By the device's place in sysfs: /sys/class/block/sdb1 is a link to .../usb2/2-1/..."""
    link = sys_root / "class/block" / Path(device).name
    try:
        return "/usb" in os.readlink(link)
    except (OSError, ValueError):
        return False
