"""What a cgroup leaves, from recorded files of both versions; and this machine against the system's own count."""

from pathlib import Path

import psutil
import pytest

from engine.hardware.probe import cgroup_room, probe

MIB = 1 << 20


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_v2_takes_the_tightest_of_all_parents(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/user/app\n")
    _write(
        tmp_path / "cg/user",
        memory__max=f"{1000 * MIB}\n",
        memory__current=f"{900 * MIB}\n",
        memory__stat="anon 5\ninactive_file 1048576\n",
    )
    _write(tmp_path / "cg/user/app", memory__max="max\n", memory__current=f"{10 * MIB}\n", memory__stat="")
    assert cgroup_room(tmp_path / "cg", tmp_path / "own") == 101 * MIB


def test_v1_reads_the_memory_controller(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("5:cpu,cpuacct:/x\n4:memory:/box\n")
    _write(
        tmp_path / "cg/memory/box",
        memory__limit_in_bytes=f"{512 * MIB}\n",
        memory__usage_in_bytes=f"{112 * MIB}\n",
        memory__stat=f"inactive_file 0\ntotal_inactive_file {12 * MIB}\n",
    )
    _write(tmp_path / "cg/memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="5\n")
    assert cgroup_room(tmp_path / "cg", tmp_path / "own") == 412 * MIB


@pytest.mark.parametrize("text", ["", "0::/\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").write_text(text)
    (tmp_path / "cg").mkdir()
    assert cgroup_room(tmp_path / "cg", tmp_path / "own") is None
    assert cgroup_room(tmp_path / "cg", tmp_path / "absent") is None


def test_this_machine() -> None:
    machine = probe()
    assert machine.ram_total == psutil.virtual_memory().total
    assert 0 < machine.ram_available <= machine.ram_total
