"""The drive under a path: its name for messages, whether it is slow by nature, its space. Reads the system's own tables."""

import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.hardware.machine import DriveFacts, DriveKind

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "afpfs", "ceph", "9p", "fuse.sshfs", "fuse.rclone", "davfs"}
)
_PATIENCE_SECONDS = 2.0  # a network drive whose server is gone answers no question about its space
_BUSES = (("/usb", DriveKind.USB), ("/nvme", DriveKind.NVME), ("/ata", DriveKind.SATA))
_DEEPEST = 4  # an encrypted volume in a volume group on a RAID


@dataclass(frozen=True, slots=True)
class Drive:
    """`device` and `mount` as the system names them; empty where it does not say."""

    device: str = ""
    mount: str = ""
    filesystem: str = ""
    kind: DriveKind = DriveKind.UNKNOWN
    is_read_only: bool = False

    @property
    def label(self) -> str:
        """For the middle of a sentence: "the drive /dev/sda1 (/media/usb)"."""
        name = f"{self.device} ({self.mount})" if self.device not in ("", self.mount) else self.mount
        return f"the drive {name}".rstrip()

    @property
    def notice(self) -> str:
        """One sentence where reading experts from here will be slow; else empty."""
        kind = {DriveKind.NETWORK: "a network drive", DriveKind.USB: "a USB drive"}.get(self.kind, "")
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
    options = found.opts.split(",")
    if found.fstype.lower() in _NETWORK or found.device.startswith(("//", "\\\\")) or "remote" in options:
        kind = DriveKind.NETWORK
    elif "removable" in options:  # as Windows says of a stick
        kind = DriveKind.USB
    else:
        kind = _kind(Path(os.path.realpath(found.device)).name if found.device.startswith("/dev/") else "", sys_root)
    return Drive(found.device, found.mountpoint, found.fstype, kind, "ro" in options)


def drive_facts(folder: Path, sys_root: Path = Path("/sys")) -> DriveFacts:
    """Of a models folder, which need not exist yet. Never raises; sizes are None where the drive does not answer."""
    drive = drive_of(folder, sys_root)
    space: list[tuple[int, int]] = []

    def measure() -> None:
        there = Path(os.path.abspath(folder))
        while True:
            try:
                usage = shutil.disk_usage(there)
            except OSError:
                if there.parent == there:
                    return
                there = there.parent
                continue
            if 0 <= usage.free <= usage.total and usage.total:
                space.append((usage.free, usage.total))
            return

    asking = threading.Thread(target=measure, name="space of a drive", daemon=True)
    asking.start()
    asking.join(_PATIENCE_SECONDS)
    free, total = space[0] if space else (None, None)
    return DriveFacts(str(folder), drive.device, drive.mount, drive.kind, drive.filesystem, free, total, drive.is_read_only)


def _kind(device: str, sys_root: Path, depth: int = 0) -> DriveKind:
    """By the device's place in sysfs: /sys/class/block/sdb1 is a link to .../usb2/2-1/...; a mapped one has slaves."""
    try:
        place = os.readlink(sys_root / "class/block" / device) if device else ""
    except (OSError, ValueError):
        return DriveKind.UNKNOWN
    for part, kind in _BUSES:
        if part in place:
            return kind
    try:
        below = os.listdir(sys_root / "class/block" / device / "slaves") if depth < _DEEPEST and place else []
    except OSError:
        return DriveKind.UNKNOWN
    kinds = {_kind(slave, sys_root, depth + 1) for slave in below}
    return kinds.pop() if len(kinds) == 1 else DriveKind.UNKNOWN
