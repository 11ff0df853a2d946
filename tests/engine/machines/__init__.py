"""Computers that this one is not, put together from the formats in which Linux, NVML and torch tell their facts.

`computer(name, folder)` lays the files of `name`.json out below `folder`: "files" and "links" by their path, "pci" as devices
in sysfs. "nvml" and "torch" are what the two children would find: a fault, or facts through the real reader.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from engine.hardware.child import Reply
from engine.hardware.nvml import read_nvml
from engine.hardware.system import System

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def computer(name: str, folder: Path, **changes: Any) -> System:
    """`changes` take the place of keys of the file."""
    facts: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text()) | changes
    for path, text in facts.get("files", {}).items():
        _write(folder / path.lstrip("/"), text if isinstance(text, str) else "\n".join(text))
    for path, target in facts.get("links", {}).items():
        _link(folder / path.lstrip("/"), target)
    for device in facts.get("pci", []):
        _pci(folder / "sys/bus/pci/devices" / device["address"], device)
    told = facts.get("sysctl", {})
    return System(
        root=folder,
        platform=facts.get("platform", "linux"),
        architecture=facts.get("architecture", "x86_64"),
        environ=facts.get("environ", {}),
        ask=lambda child: _reply(child, facts),
        run=lambda command: told.get(command[-1], ""),
        wheel_text=lambda: _version_file(**facts["torch_build"]),
        psutil=SimpleNamespace(
            virtual_memory=lambda: SimpleNamespace(**facts["memory"]),
            cpu_count=lambda logical=True: facts["cpus"][int(logical)],
        ),
    )


def _reply(child: str, facts: dict[str, Any]) -> Reply:
    found = facts[{"nvml": "nvml", "torch_child": "torch"}[child]]
    if "ended" in found:
        return Reply({}, found["ended"])
    if child == "torch_child":
        return Reply(found)
    return Reply(read_nvml(FakeNvml(found), lambda pid: f"program {pid}"))


class FakeNvml:
    """pynvml's functions over recorded values; {"error": "GpuIsLost"} in the place of a value raises that error."""

    NVMLError = pynvml.NVMLError

    def __init__(self, facts: dict[str, Any]) -> None:
        self._facts = facts

    def nvmlInit(self) -> None:
        _value(self._facts.get("init"))

    def nvmlSystemGetDriverVersion(self) -> Any:
        return _value(self._facts["driver"])

    def nvmlSystemGetCudaDriverVersion(self) -> Any:
        return _value(self._facts["cuda"])

    def nvmlDeviceGetCount(self) -> Any:
        return _value(self._facts.get("count", len(self._facts["devices"])))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return _value(self._facts["devices"][index])

    def nvmlDeviceGetMemoryInfo(self, device: Any) -> Any:
        return SimpleNamespace(**_value(device["memory"]))

    def nvmlDeviceGetPciInfo(self, device: Any) -> Any:
        return SimpleNamespace(busId=_value(device["bus_id"]))

    def nvmlDeviceGetComputeRunningProcesses(self, device: Any) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _value(device.get("compute", []))]

    def nvmlDeviceGetGraphicsRunningProcesses(self, device: Any) -> Any:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in _value(device.get("graphics", []))]

    def __getattr__(self, name: str) -> Any:
        keys = {
            "nvmlDeviceGetName": "name", "nvmlDeviceGetUUID": "uuid", "nvmlDeviceGetCudaComputeCapability": "capability",
            "nvmlDeviceGetCurrPcieLinkGeneration": "generation_now", "nvmlDeviceGetCurrPcieLinkWidth": "width_now",
            "nvmlDeviceGetMaxPcieLinkGeneration": "generation_most", "nvmlDeviceGetMaxPcieLinkWidth": "width_most",
        }  # fmt: skip
        return lambda device: _value(device[keys[name]])


def _value(found: Any) -> Any:
    if isinstance(found, dict) and set(found) == {"error"}:
        raise getattr(pynvml, f"NVMLError_{found['error']}")
    return found


def _version_file(version: str, **kinds: str) -> str:
    """As torch writes torch/version.py."""
    lines = [f"__version__ = '{version}'", "debug = False", "git_version = 'cf30'"]
    return "\n".join([*lines, *(f"{kind}: Optional[str] = {kinds.get(kind)!r}" for kind in ("cuda", "hip", "xpu"))])


def _pci(folder: Path, device: dict[str, Any]) -> None:
    for name, text in device.items():
        if name == "driver":
            _link(folder / "driver", f"../../../../bus/pci/drivers/{text}")
        elif name != "address":
            _write(folder / name, str(text))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
