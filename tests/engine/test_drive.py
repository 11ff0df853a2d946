"""What is said of the drive under a model, from made-up tables of the system."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.hardware.drive import drive_facts, drive_of
from engine.hardware.machine import DriveKind

MOUNTS = [
    SimpleNamespace(device=device, mountpoint=mount, fstype=kind, opts=options)
    for device, mount, kind, options in [
        ("/dev/nvme0n1p2", "/", "ext4", "rw,relatime"),
        ("server:/models", "/mnt/nas", "nfs4", "ro"),
        ("/dev/sdb1", "/media/stick", "exfat", "rw"),
        ("tmpfs", "/mnt/nas/scratch", "tmpfs", "rw"),
        ("/dev/dm-1", "/data", "xfs", "ro,relatime"),
        ("/dev/sda2", "/old", "ext4", "rw"),
        ("/dev/vda", "/virtual", "ext4", "rw"),
        ("D:\\", "/d", "NTFS", "rw,fixed"),
        ("E:\\", "/e", "NTFS", "rw,removable"),
        ("Z:\\", "/z", "NTFS", "rw,remote"),
    ]
]


@pytest.fixture(autouse=True)
def system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr("psutil.disk_partitions", lambda all: MOUNTS)  # noqa: A006 - psutil's own name
    blocks = tmp_path / "class/block"
    blocks.mkdir(parents=True)
    (blocks / "sdb1").symlink_to("../../devices/pci0000:00/usb2/2-1/host6/target6:0:0/block/sdb/sdb1")
    (blocks / "sda2").symlink_to("../../devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sda/sda2")
    (blocks / "vda").symlink_to("../../devices/pci0000:00/0000:00:02.0/virtio1/block/vda")
    mapped, volume = tmp_path / "devices/virtual/block/dm-1", tmp_path / "devices/virtual/block/dm-0"
    (mapped / "slaves/dm-0").mkdir(parents=True)  # an encrypted volume on a logical one on NVMe
    (volume / "slaves/nvme0n1p2").mkdir(parents=True)
    (blocks / "dm-1").symlink_to("../../devices/virtual/block/dm-1")
    (blocks / "dm-0").symlink_to("../../devices/virtual/block/dm-0")
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


@pytest.mark.parametrize(
    ("path", "kind", "is_read_only"),
    [
        ("/home", DriveKind.NVME, False),
        ("/mnt/nas/x", DriveKind.NETWORK, True),
        ("/media/stick", DriveKind.USB, False),
        ("/data/models", DriveKind.NVME, True),
        ("/old", DriveKind.SATA, False),
        ("/virtual", DriveKind.UNKNOWN, False),
        ("/d", DriveKind.UNKNOWN, False),
        ("/e", DriveKind.USB, False),
        ("/z", DriveKind.NETWORK, False),
    ],
)
def test_the_bus_behind_a_folder(system: Path, path: str, kind: DriveKind, *, is_read_only: bool) -> None:
    drive = drive_of(Path(path), system)
    assert (drive.kind, drive.is_read_only) == (kind, is_read_only)


@pytest.mark.parametrize("usage", [(0, 0, 0), (10, 0, 99)])
def test_a_drive_that_lies_about_its_space_tells_none(
    system: Path, monkeypatch: pytest.MonkeyPatch, usage: tuple[int, int, int]
) -> None:
    answer = SimpleNamespace(total=usage[0], used=usage[1], free=usage[2])
    monkeypatch.setattr("shutil.disk_usage", lambda _: answer)
    facts = drive_facts(Path("/home"), system)
    assert (facts.free_bytes, facts.total_bytes) == (None, None)


def test_a_drive_that_does_not_answer_is_not_waited_for(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr("engine.hardware.drive._PATIENCE_SECONDS", 0.05)
    late = SimpleNamespace(total=9, free=9)
    monkeypatch.setattr("shutil.disk_usage", lambda _: late if answered.wait(60) else None)
    try:
        assert drive_facts(Path("/mnt/nas"), system).free_bytes is None
    finally:
        answered.set()
        for thread in threading.enumerate():
            if thread.name == "space of a drive":
                thread.join()
