"""What is said of the drive under a model, from made-up tables of the system."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.hardware.drive import drive_of

MOUNTS = [
    SimpleNamespace(device="/dev/nvme0n1p2", mountpoint="/", fstype="ext4"),
    SimpleNamespace(device="server:/models", mountpoint="/mnt/nas", fstype="nfs4"),
    SimpleNamespace(device="/dev/sdb1", mountpoint="/media/stick", fstype="exfat"),
    SimpleNamespace(device="tmpfs", mountpoint="/mnt/nas/scratch", fstype="tmpfs"),
]


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("psutil.disk_partitions", lambda all: MOUNTS)  # noqa: A006 - psutil's own name
    blocks = tmp_path / "class/block"
    blocks.mkdir(parents=True)
    (blocks / "sdb1").symlink_to("../../devices/pci0000:00/usb2/2-1/host6/target6:0:0/block/sdb/sdb1")
    (blocks / "nvme0n1p2").symlink_to("../../devices/pci0000:00/nvme/nvme0/nvme0n1/nvme0n1p2")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "label", "notice"),
    [
        ("/home/a/model", "the drive /dev/nvme0n1p2 (/)", ""),
        ("/mnt/nas/qwen", "the drive server:/models (/mnt/nas)", "on a network drive, server:/models (/mnt/nas): copy it"),
        ("/mnt/nas/scratch/qwen", "the drive tmpfs (/mnt/nas/scratch)", ""),
        (
            "/media/stick/qwen/model.safetensors",
            "the drive /dev/sdb1 (/media/stick)",
            "on a USB drive, /dev/sdb1 (/media/stick)",
        ),
        ("/media/stickers", "the drive /dev/nvme0n1p2 (/)", ""),
    ],
)
def test_the_mount_that_holds_a_path_is_named(system: Path, path: str, label: str, notice: str) -> None:
    drive = drive_of(Path(path), system)
    assert drive.label == label
    assert (notice in drive.notice) if notice else not drive.notice


def test_a_system_that_tells_nothing_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: bool) -> None:
        raise PermissionError

    monkeypatch.setattr("psutil.disk_partitions", refuse)
    drive = drive_of(Path("/x"))
    assert (drive.label, drive.notice) == ("the drive", "")
