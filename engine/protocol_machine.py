"""Messages of `engine.protocol` about this computer: what it has, and what was measured on it."""

from dataclasses import dataclass, field

from engine.hardware.machine import Machine
from engine.meter import Link


@dataclass(frozen=True, slots=True)
class ProbeMachine:
    """Look at this computer: seconds where there is a graphics card to try. Answered by `MachineFacts`.

    `folders` are those whose drives are looked at; without any, those in which models lie.
    """

    request_id: int
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRates:
    """What was measured on this computer before. Answered by `MachineRates`.

    `folder` is where models would go, here and below; empty for the Hugging Face cache.
    """

    request_id: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class MeasureMachine:
    """Measure drive, memory and kernels, with a model that is here or a scratch file: some ten seconds, in a child of its own.

    Tells `Progress` in parts of the whole; answered by `MachineRates`. After `Cancel` nothing is kept.
    """

    request_id: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    request_id: int
    machine: Machine


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Measured GB/s; nothing where `unknown` says why not ("this computer has not been measured yet")."""

    request_id: int
    gbps: dict[Link, float] = field(default_factory=dict)
    kernels: dict[str, float] = field(default_factory=dict)  # by weight format: experts of one token, computed on
    drive: str = ""  # device whose rate that of the disk is
    seconds: float = 0.0  # since 1970, when it was measured
    unknown: str = ""
