"""A memory limit around child processes, by a cgroup of version 1 or 2 where this computer lets us make one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryCap:
    """`folder` is None where no cgroup can be made: then nothing holds a process to the limit but its own budget."""

    folder: Path | None
    version: int = 0

    def enter(self) -> None:
        """For the child, before it starts."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def start_over(self) -> None:
        """Forget pages that earlier children left in the cache, and the peak."""
        if self.folder is not None and self.version == 1:
            (self.folder / "memory.force_empty").write_text("0")
            (self.folder / "memory.max_usage_in_bytes").write_text("0")

    @property
    def peak_bytes(self) -> int | None:
        """The most that was in use since `start_over`, page cache included."""
        if self.folder is None:
            return None
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int((self.folder / name).read_text())
        except OSError:  # before Linux 5.19
            return None


@contextmanager
def memory_cap(nbytes: int) -> Iterator[MemoryCap]:
    """The cgroup goes with its last process, at the end of the block."""
    for version, parent, limit in ((1, _ROOT / "memory", "memory.limit_in_bytes"), (2, _ROOT, "memory.max")):
        folder = parent / f"stoker-perf-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if not _limit(folder / limit, nbytes):
                continue
            yield MemoryCap(folder, version)
            return
        finally:
            folder.rmdir()
    yield MemoryCap(None)


def _limit(file: Path, nbytes: int) -> bool:
    try:
        file.write_text(str(nbytes))
    except OSError:
        return False
    return True
