"""How many threads the kernels should have: what this process may run on, in physical cores. Reads files, starts nothing."""

import os

from engine.hardware.cgroup import cpu_quota
from engine.hardware.system import System


def kernel_threads(system: System | None = None) -> int:
    """Physical cores in this process's affinity, or fewer where a cgroup allows less CPU time. At least 1."""
    system = system or System()
    return decide(allowed_cpus(), system, cpu_quota(system))


def decide(allowed: frozenset[int], system: System, quota: float | None) -> int:
    """A core's second hardware thread adds nothing to a kernel that waits for memory, and a throttled one delays all."""
    cores = len({core_of(cpu, system) for cpu in allowed}) or 1
    return cores if quota is None else max(1, min(cores, int(quota + 0.01)))


def allowed_cpus() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def core_of(cpu: int, system: System) -> str:
    """The hardware threads that share the core of `cpu`, as the kernel lists them; the CPU itself where it does not say."""
    return system.text(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or str(cpu)
