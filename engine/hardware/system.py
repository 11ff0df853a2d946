"""The one place through which the probe sees a computer: its files, its environment, its short-lived children.

A test hands over another root and other answers, and so plays a computer that it does not have.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine

import psutil

from engine.hardware.child import Reply, ask_child
from engine.hardware.wheel import version_file


def run_command(command: Sequence[str]) -> str:
    """What a program of the system prints; empty where it is absent or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return ""


@dataclass(frozen=True, slots=True)
class System:
    """Paths are as the computer names them, from its root: `text("/proc/meminfo")`. Nothing here raises."""

    root: Path = Path("/")
    platform: str = sys.platform
    architecture: str = field(default_factory=machine)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    ask: Callable[[str], Reply] = ask_child
    run: Callable[[Sequence[str]], str] = run_command
    wheel_text: Callable[[], str] = version_file
    psutil: object = psutil  # asked where the system has no files to read

    def path(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        """Stripped; empty where it cannot be read."""
        try:
            return self.path(path).read_text(encoding="utf-8", errors="replace").strip().strip("\0")
        except (OSError, ValueError):
            return ""

    def number(self, path: str) -> int | None:
        try:
            return int(self.text(path), 0)
        except ValueError:  # "max", or nothing
            return None

    def names(self, path: str) -> list[str]:
        """What a folder holds."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def link(self, path: str) -> str:
        """Where a link points to; empty where it is none."""
        try:
            return os.readlink(self.path(path))
        except (OSError, ValueError):
            return ""

    def has(self, path: str) -> bool:
        return os.path.lexists(self.path(path))

    @property
    def is_linux(self) -> bool:
        return self.platform.startswith("linux")

    @property
    def is_wsl(self) -> bool:
        return self.is_linux and "microsoft" in self.text("/proc/version").lower()

    @property
    def is_container(self) -> bool:
        marks = ("docker", "kubepods", "containerd", "lxc", "libpod")
        return (
            self.has("/.dockerenv")
            or self.has("/run/.containerenv")
            or "container" in self.environ
            or any(mark in self.text("/proc/1/cgroup") for mark in marks)
        )

    @property
    def name(self) -> str:
        if self.is_wsl:
            return "WSL"
        return {"darwin": "macOS", "win32": "Windows"}.get(self.platform, "Linux" if self.is_linux else self.platform)
