"""How many threads the kernels should have: what this process may run on, in physical cores. Reads files, starts nothing."""

import os
from pathlib import Path

_SYSTEM_CPUS = Path("/sys/devices/system/cpu")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def kernel_threads(cpus: Path = _SYSTEM_CPUS, cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> int:
    """Physical cores in this process's affinity, or fewer where a cgroup allows less CPU time. At least 1."""
    return decide(allowed_cpus(), cpus, cpu_quota(cgroups, own))


def decide(allowed: frozenset[int], cpus: Path, quota: float | None) -> int:
    """A core's second hardware thread adds nothing to a kernel that waits for memory, and a throttled one delays all."""
    cores = len({core_of(cpu, cpus) for cpu in allowed}) or 1
    return cores if quota is None else max(1, min(cores, int(quota + 0.01)))


def allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def core_of(cpu: int, cpus: Path) -> str:
    """The hardware threads that share the core of `cpu`, as the kernel lists them; the CPU itself where it does not say."""
    try:
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def cpu_quota(cgroups: Path, own: Path) -> float | None:
    """CPUs' worth of time that the tightest cgroup around this process grants, or None where there is no limit."""
    quotas = [quota for folder in _folders(cgroups, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(cgroups: Path, own: Path) -> list[Path]:
    """The process's CPU cgroup and its parents, version 2 and 1."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        relative = Path(path.lstrip("/"))
        if controllers == "":
            roots = [cgroups, cgroups / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [cgroups / controllers, cgroups / "cpu"]
        else:
            continue
        folders += [root / part for root in roots for part in (relative, *relative.parents)]
    return folders


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None  # "max" raises ValueError
    except (OSError, ValueError):
        return None
