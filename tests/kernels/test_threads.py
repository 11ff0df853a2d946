"""How many threads a machine, an affinity and a quota come to."""

from pathlib import Path

import pytest

from engine.hardware.system import System
from engine.kernels.threads import core_of, decide, kernel_threads


def machine(root: Path, siblings: list[str]) -> System:
    for cpu, shared in enumerate(siblings):
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(shared + "\n")
    return System(root=root)


def test_a_core_counts_once(tmp_path: Path) -> None:
    system = machine(tmp_path, ["0,4", "1,5", "2,6", "3,7"] * 2)
    assert decide(frozenset(range(8)), system, None) == 4
    assert decide(frozenset({0, 4, 1}), system, None) == 2
    assert decide(frozenset({9, 10}), system, None) == 2  # not described: each its own
    assert decide(frozenset(), system, None) == 1
    assert core_of(3, system) == "3,7"


@pytest.mark.parametrize(("quota", "threads"), [(None, 4), (8.0, 4), (3.0, 3), (2.5, 2), (0.5, 1), (2.999, 3)])
def test_a_quota_caps(quota: float | None, threads: int, tmp_path: Path) -> None:
    assert decide(frozenset(range(4)), machine(tmp_path, ["0", "1", "2", "3"]), quota) == threads


def test_nothing_to_read(tmp_path: Path) -> None:
    assert kernel_threads(System(root=tmp_path)) >= 1
