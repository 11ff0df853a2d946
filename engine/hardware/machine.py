"""Facts about this computer, frozen once probed. Nothing here looks anything up."""

from dataclasses import dataclass, field

from engine.meter import Link


@dataclass(frozen=True, slots=True)
class Machine:
    """`ram_available` is what this process may still take: free memory, or less where a cgroup caps it."""

    ram_total: int
    ram_available: int
    is_capped: bool  # a cgroup allows less than the machine has


@dataclass(frozen=True, slots=True)
class Rates:
    """GB/s as measured here. `compute_gbps` is weight bytes through the kernels; `ceilings` the links' best."""

    compute_gbps: float
    layer_seconds: float  # fixed cost of one layer in decode, beyond its bytes
    ceilings: dict[Link, float] = field(default_factory=dict)
