"""Which build of torch a machine gets, and why. Looks at drivers, installs nothing. The version is the lock's."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from installers.lock import pins

TORCH_VERSION = pins("torch")[0].partition("==")[2]
CUDA, ROCM = "cu130", "rocm7.2"  # the builds of that version on torch's own index
_INDEX = "https://download.pytorch.org/whl/"

Kind = Literal["cpu", "cuda", "rocm"]
KINDS: tuple[Kind, ...] = ("cpu", "cuda", "rocm")


@dataclass(frozen=True)
class Machine:
    platform: str  # as sys.platform
    has_nvidia: bool
    has_amd: bool


@dataclass(frozen=True)
class TorchBuild:
    kind: Kind
    reason: str


@dataclass(frozen=True)
class Attempt:
    """Arguments of `pip install`. `with_needs` where the build asks for more packages, whose versions it pins itself."""

    arguments: tuple[str, ...]
    with_needs: bool = False


def look_around() -> Machine:
    return Machine(
        sys.platform, nvidia_module_is_loaded() or _runs("nvidia-smi"), Path("/opt/rocm").is_dir() or _runs("rocminfo")
    )


def nvidia_module_is_loaded() -> bool:
    """Free to ask, unlike running nvidia-smi; Linux only."""
    return Path("/proc/driver/nvidia/version").exists()


def _runs(program: str) -> bool:
    path = shutil.which(program)
    if path is None:
        return False
    try:
        return subprocess.run([path], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def choose(machine: Machine, wish: Kind | None = None) -> TorchBuild:
    if wish is not None:
        return TorchBuild(wish, "because --torch asks for it")
    if machine.platform == "darwin":
        return TorchBuild("cpu", "which on macOS also drives the Apple GPU")
    if machine.has_nvidia:
        return TorchBuild("cuda", "because an NVIDIA driver was found")
    if machine.has_amd and machine.platform == "linux":
        return TorchBuild("rocm", "because AMD's ROCm was found")
    if machine.has_amd:
        return TorchBuild("cpu", "because torch has no ROCm build for this system")
    return TorchBuild("cpu", "because no NVIDIA or AMD driver was found")


def attempts(kind: Kind, platform: str) -> tuple[Attempt, ...]:
    """What to try, in order. The machine's own package sources come first: they may hold the wheel already."""
    plain = Attempt((f"torch=={TORCH_VERSION}",), with_needs=True)
    if platform == "darwin":
        return (plain,)
    if kind == "cuda":
        # `===` leaves out local versions: `==2.13.0` would also accept 2.13.0+cpu. Only on Linux is the plain build CUDA.
        default = (Attempt((f"torch==={TORCH_VERSION}",), with_needs=True),) if platform == "linux" else ()
        return (*default, _from_torch_index(CUDA))
    if kind == "rocm":
        return (_from_torch_index(ROCM),)
    exact = Attempt((f"torch=={TORCH_VERSION}+cpu",))
    return (exact, Attempt(("--index-url", f"{_INDEX}cpu", *exact.arguments)), plain)


def _from_torch_index(build: str) -> Attempt:
    return Attempt(("--index-url", f"{_INDEX}{build}", f"torch=={TORCH_VERSION}+{build}"), with_needs=True)
