"""How many threads a machine, an affinity and a cgroup come to."""

from pathlib import Path

import pytest

from engine.kernels.threads import core_of, cpu_quota, decide, kernel_threads


def machine(folder: Path, siblings: list[str]) -> Path:
    for cpu, shared in enumerate(siblings):
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(shared + "\n")
    return folder


def test_a_core_counts_once(tmp_path: Path) -> None:
    cpus = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert decide(frozenset(range(8)), cpus, None) == 4
    assert decide(frozenset({0, 4, 1}), cpus, None) == 2
    assert decide(frozenset({9, 10}), cpus, None) == 2  # not described: each its own
    assert decide(frozenset(), cpus, None) == 1
    assert core_of(3, cpus) == "3,7"


@pytest.mark.parametrize(("quota", "threads"), [(None, 4), (8.0, 4), (3.0, 3), (2.5, 2), (0.5, 1), (2.999, 3)])
def test_a_quota_caps(quota: float | None, threads: int, tmp_path: Path) -> None:
    assert decide(frozenset(range(4)), machine(tmp_path, ["0", "1", "2", "3"]), quota) == threads


def test_the_tightest_cgroup_rules(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    inner = root / "user.slice" / "app"
    inner.mkdir(parents=True)
    own.write_text("0::/user.slice/app\n")
    (root / "user.slice" / "cpu.max").write_text("150000 100000\n")
    (inner / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(root, own) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota(root, own) == 0.5


def test_version_1(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    folder = root / "cpu,cpuacct" / "job"
    folder.mkdir(parents=True)
    own.write_text("5:memory:/job\n4:cpu,cpuacct:/job\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(root, own) is None
    (folder / "cpu.cfs_quota_us").write_text("200000\n")
    assert cpu_quota(root, own) == 2.0


def test_nothing_to_read(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "absent") is None
    assert kernel_threads(tmp_path, tmp_path, tmp_path / "absent") >= 1
