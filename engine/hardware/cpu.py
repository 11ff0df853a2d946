"""The processor: cores, the kernels' tiers that it can run, memory nodes, and how much of it this process may use."""

import platform
from typing import Any

from engine.hardware.cgroup import cpu_quota
from engine.hardware.machine import Cpu
from engine.hardware.system import System

_CPUS = "/sys/devices/system/cpu"
# As kernels/cpu/isa.cpp asks for them, by the names in /proc/cpuinfo; each tier needs those before it.
_TIERS = {
    "avx2": {"fma", "f16c", "avx2"},
    "avx512": {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni"},
    "avx512_bf16": {"avx512_bf16", "avx512vbmi"},
}
_ARM = ("arm64", "aarch64")


def read_cpu(system: System) -> Cpu:
    if system.is_linux:
        return _linux(system)
    return _mac(system) if system.platform == "darwin" else _other(system)


def _linux(system: System) -> Cpu:
    info = _cpuinfo(system)
    online = _numbers(system.text(f"{_CPUS}/online"))
    cores = {system.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in online}
    performance, efficiency = _kinds(system, online)
    allowed = _numbers(_line(system.text("/proc/self/status"), "Cpus_allowed_list"))
    limits = [cpu_quota(system), float(len(allowed & online)) if allowed and not online <= allowed else None]
    nodes = _numbers(system.text("/sys/devices/system/node/online"))
    return Cpu(
        name=info.get("model name") or info.get("Model", ""),
        physical_cores=len(cores) or None,
        logical_cores=len(online) or None,
        performance_cores=performance,
        efficiency_cores=efficiency,
        isa=_isa(system, set((info.get("flags") or "").split())),
        numa_nodes=len(nodes) or 1,
        quota=min((limit for limit in limits if limit is not None), default=None),
    )


def _mac(system: System) -> Cpu:
    def count(name: str) -> int | None:
        text = sysctl(system, name)
        return int(text) if text.isdigit() else None

    performance, efficiency = count("hw.perflevel0.physicalcpu"), count("hw.perflevel1.physicalcpu")
    return Cpu(
        sysctl(system, "machdep.cpu.brand_string"), count("hw.physicalcpu"), count("hw.logicalcpu"),
        performance if efficiency else None, efficiency, _isa(system, set()),
    )  # fmt: skip


def sysctl(system: System, name: str) -> str:
    """One of macOS's own figures."""
    return system.run(["/usr/sbin/sysctl", "-n", name])


def _other(system: System) -> Cpu:
    tool: Any = system.psutil
    return Cpu(platform.processor(), tool.cpu_count(logical=False), tool.cpu_count(), isa=_isa(system, set()))


def _isa(system: System, flags: set[str]) -> tuple[str, ...]:
    """Empty where an x86 system does not name its features: the kernels find out for themselves."""
    if system.architecture.lower() in _ARM:
        return "portable", "neon"
    if not flags:
        return ()
    tiers, needed = ["portable"], set[str]()
    for tier, more in _TIERS.items():
        needed |= more
        if needed <= flags:
            tiers.append(tier)
    return tuple(tiers)


def _kinds(system: System, online: set[int]) -> tuple[int | None, int | None]:
    """Performance and efficiency cores, by Intel's two device nodes or ARM's capacities; None where all are alike."""
    fast, slow = (_numbers(system.text(f"/sys/devices/{kind}/cpus")) & online for kind in ("cpu_core", "cpu_atom"))
    if not slow:
        capacities = {cpu: system.number(f"{_CPUS}/cpu{cpu}/cpu_capacity") for cpu in online}
        most = max((capacity for capacity in capacities.values() if capacity is not None), default=None)
        slow = {cpu for cpu, capacity in capacities.items() if capacity is not None and most and capacity < most * 0.75}
        fast = online - slow
    if not slow or not fast:
        return None, None
    performance, efficiency = (
        len({system.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list") or str(cpu) for cpu in kind})
        for kind in (fast, slow)
    )
    return performance, efficiency


def _cpuinfo(system: System) -> dict[str, str]:
    """The first processor's lines."""
    found: dict[str, str] = {}
    for line in system.text("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return found


def _line(text: str, name: str) -> str:
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _numbers(text: str) -> set[int]:
    """'0-3,8' -> {0, 1, 2, 3, 8}."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found |= set(range(int(first), int(last if last.isdigit() else first) + 1))
    return found
