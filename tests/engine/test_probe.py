"""What cgroups, commit limits and affinity leave, from files of both versions; and this machine against the system's own tools."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from engine.errors import EngineError
from engine.hardware.cgroup import MemoryCap, cpu_quota, memory_cap
from engine.hardware.child import Reply
from engine.hardware.cpu import read_cpu
from engine.hardware.memory import read_memory
from engine.hardware.probe import probe, probe_all
from engine.hardware.system import System

MIB = 1 << 20


def _computer(root: Path, files: dict[str, str]) -> System:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return System(root=root, environ={})


def _cgroup(root: Path, folder: str, **files: str) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_v2_takes_the_tightest_of_all_parents(tmp_path: Path) -> None:
    system = _computer(tmp_path, {"proc/self/cgroup": "0::/user/app\n"})
    stat = "anon 5\ninactive_file 1048576\n"
    _cgroup(tmp_path, "user", memory__max=f"{1000 * MIB}\n", memory__current=f"{900 * MIB}\n", memory__stat=stat)
    _cgroup(tmp_path, "user/app", memory__max="max\n", memory__current=f"{10 * MIB}\n", memory__stat="")
    assert memory_cap(system) == MemoryCap(1000 * MIB, 101 * MIB)


def test_a_lowered_soft_limit_counts(tmp_path: Path) -> None:
    system = _computer(tmp_path, {"proc/self/cgroup": "0::/\n"})
    _cgroup(tmp_path, "", memory__max=f"{100 * MIB}\n", memory__high=f"{80 * MIB}\n", memory__current="0\n")
    assert memory_cap(system) == MemoryCap(80 * MIB, 80 * MIB)


def test_v1_reads_the_memory_controller(tmp_path: Path) -> None:
    system = _computer(tmp_path, {"proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/box\n"})
    _cgroup(
        tmp_path,
        "memory/box",
        memory__limit_in_bytes=f"{512 * MIB}\n",
        memory__usage_in_bytes=f"{112 * MIB}\n",
        memory__stat=f"inactive_file 0\ntotal_inactive_file {12 * MIB}\n",
    )
    _cgroup(tmp_path, "memory", memory__limit_in_bytes="9223372036854771712\n", memory__usage_in_bytes="5\n")
    assert memory_cap(system) == MemoryCap(512 * MIB, 412 * MIB)
    _cgroup(tmp_path, "cpu,cpuacct/x", cpu__cfs_quota_us="250000\n", cpu__cfs_period_us="100000\n")
    assert cpu_quota(system) == 2.5


def test_the_tightest_quota_rules(tmp_path: Path) -> None:
    system = _computer(tmp_path, {"proc/self/cgroup": "0::/user/app\n"})
    _cgroup(tmp_path, "user", cpu__max="150000 100000\n")
    _cgroup(tmp_path, "user/app", cpu__max="max 100000\n")
    assert cpu_quota(system) == 1.5
    _cgroup(tmp_path, "user/app", cpu__max="50000 100000\n")
    assert cpu_quota(system) == 0.5


@pytest.mark.parametrize("text", ["", "0::/\n", "no cgroup at all\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    system = _computer(tmp_path, {"proc/self/cgroup": text})
    assert (memory_cap(system), cpu_quota(system)) == (None, None)


@pytest.mark.parametrize(
    ("meminfo", "available"),
    [
        ("MemTotal: 1000 kB\nMemAvailable: 600 kB\n", 600),
        ("MemTotal: 1000 kB\nMemFree: 300 kB\nBuffers: 20 kB\nCached: 80 kB\n", 400),  # before Linux 3.14
        ("MemTotal: 1000 kB\nMemAvailable: 5000 kB\n", 1000),  # as some containers' file systems lie
    ],
)
def test_available_memory_is_never_more_than_there_is(tmp_path: Path, meminfo: str, available: int) -> None:
    memory = read_memory(_computer(tmp_path, {"proc/meminfo": meminfo}))
    assert (memory.total, memory.available) == (1000 * 1024, available * 1024)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: 0 kB\nMemAvailable: 5 kB\n", "MemTotal: 1000 kB\n", "\0\xff"])
def test_memory_of_unknown_size_is_refused_and_never_guessed(tmp_path: Path, meminfo: str) -> None:
    with pytest.raises(EngineError) as refused:
        read_memory(_computer(tmp_path, {"proc/meminfo": meminfo}))
    assert refused.value.code == "probe.memory"


def test_a_limit_beyond_the_memory_is_none(tmp_path: Path) -> None:
    system = _computer(tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 600 kB\n", "proc/self/cgroup": "0::/\n"})
    _cgroup(tmp_path, "", memory__max=f"{10 * MIB}\n", memory__current="0\n")
    assert read_memory(system).limit is None


def test_affinity_is_a_quota(tmp_path: Path) -> None:
    files = {"sys/devices/system/cpu/online": "0-7\n", "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0,2-3\n"}
    system = _computer(tmp_path, files)
    assert read_cpu(system).quota == 3.0


def test_the_windows_figures_come_from_its_own_count() -> None:
    memory = SimpleNamespace(virtual_memory=lambda: SimpleNamespace(total=16 * MIB, available=9 * MIB))
    found = read_memory(System(platform="win32", psutil=memory))
    assert (found.total, found.available, found.commit_left) == (16 * MIB, 9 * MIB, None)  # no windll here to ask


def test_this_machine() -> None:
    machine = probe()
    assert machine.ram_total == psutil.virtual_memory().total
    assert 0 < machine.ram_available <= machine.ram_total


@pytest.mark.skipif(shutil.which("lscpu") is None, reason="needs lscpu")
def test_the_processor_is_the_one_that_lscpu_sees() -> None:
    text = subprocess.run(["lscpu", "--json"], capture_output=True, text=True, check=True).stdout
    told: dict[str, str] = {}

    def walk(fields: list[dict[str, object]]) -> None:
        for entry in fields:
            told[str(entry["field"]).rstrip(":")] = str(entry["data"])
            children = entry.get("children", [])
            assert isinstance(children, list)
            walk(children)

    walk(json.loads(text)["lscpu"])
    cpu = read_cpu(System())
    assert cpu.logical_cores == int(told["CPU(s)"])
    assert cpu.numa_nodes == int(told.get("NUMA node(s)", "1"))
    if "Socket(s)" in told and told["Socket(s)"].isdigit():
        assert cpu.physical_cores == int(told["Socket(s)"]) * int(told["Core(s) per socket"])
        assert cpu.name == told["Model name"]


def test_the_tiers_are_those_that_the_kernels_find_by_cpuid() -> None:
    abi = pytest.importorskip("engine.kernels.abi")
    if not abi.LIBRARY.is_file():
        pytest.skip("the native kernels are not built")
    assert list(read_cpu(System()).isa) == abi.available_isas()


@pytest.mark.skipif(shutil.which("df") is None, reason="needs df")
def test_the_drive_is_the_one_that_df_sees(tmp_path: Path) -> None:
    command = ["df", "--block-size=1", "--output=source,fstype,size,target", str(tmp_path)]
    source, fstype, size, target = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[1].split()
    (drive,) = probe_all([tmp_path / "not/there/yet"], System(ask=_unasked)).drives
    assert (drive.device, drive.filesystem, drive.total_bytes, drive.mount) == (source, fstype, int(size), target)
    assert drive.free_bytes is not None
    assert abs(drive.free_bytes - os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize) < 1 << 30


def _unasked(child: str) -> Reply:
    return Reply({}, "was not asked")
