"""Unbuffered reads straight into their final place, several in flight. Knows files and offsets, not what the bytes mean."""

import errno
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.checkpoint.experts import Run
from engine.errors import EngineError
from engine.tiers.arena import BLOCK, align_up

if sys.platform != "win32":
    import fcntl

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_IN_FLIGHT = 4  # two to four saturate the drives measured; more only cost threads


class DiskReader:
    """A pool of blocking positioned reads. `submit` queues one expert; its ticket comes back on the caller's queue.

    `notice` is empty while every file is read directly, else one sentence that says why not.
    """

    def __init__(self, in_flight: int = _IN_FLIGHT) -> None:
        self.notice = ""
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="disk")
        self._files: dict[Path, _File] = {}
        self._lock = threading.Lock()
        self._active = 0
        self._busy_since = 0.0
        self._busy = 0.0

    def submit(
        self, runs: Sequence[Run], bases: Sequence[int], target: memoryview, ticket: Any, done: "queue.SimpleQueue[Any]"
    ) -> None:
        """Read every run into `target` at its base (see `run_bases`), then put `(ticket, bytes, error or None)` on `done`.

        The bytes are those of the runs that arrived, without what alignment adds.

        `target` belongs to the reader until the ticket is back.
        """
        self._pool.submit(self._read_all, runs, bases, target, ticket, done)

    def read(self, runs: Sequence[Run], bases: Sequence[int], target: memoryview) -> None:
        """The same, waiting for it. Raises `EngineError`."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(runs, bases, target, None, done)
        _, _, error = done.get()
        if error is not None:
            raise error

    def take_busy_seconds(self) -> float:
        """Seconds with at least one read in flight since the last call."""
        with self._lock:
            now = time.perf_counter()
            if self._active:
                self._busy += now - self._busy_since
                self._busy_since = now
            busy, self._busy = self._busy, 0.0
            return busy

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _read_all(
        self, runs: Sequence[Run], bases: Sequence[int], target: memoryview, ticket: Any, done: "queue.SimpleQueue[Any]"
    ) -> None:
        error: Exception | None = None
        arrived = 0
        self._enter()
        try:
            for run, base in zip(runs, bases, strict=True):
                self._read_run(run, target[base : base + align_up(run.offset % BLOCK + run.nbytes)])
                arrived += run.nbytes
        except Exception as caught:  # the caller waits for this ticket: whatever happened must reach it
            error = caught
        finally:
            self._leave()
        done.put((ticket, arrived, error))

    def _read_run(self, run: Run, target: memoryview) -> None:
        """One aligned superset of a run. A failed read is tried once more, then named; a short read is never accepted."""
        start = run.offset // BLOCK * BLOCK
        needed = run.offset - start + run.nbytes
        for attempt in (1, 2):
            try:
                got = self._file(run.file).read_into(start, target)
            except OSError as error:
                if attempt == 1:
                    continue
                raise _read_failed(run, error.strerror or str(error)) from error
            if got >= needed:
                return
        raise _read_failed(run, f"the file ends {needed - got} bytes early")

    def _file(self, path: Path) -> "_File":
        with self._lock:
            if path not in self._files:
                self._files[path] = _File(path, self._tell)
            return self._files[path]

    def _tell(self, path: Path) -> None:
        self.notice = (
            f"Reads from {path.parent} go through the system's file cache, which takes part of the RAM and of the time."
        )

    def _enter(self) -> None:
        with self._lock:
            self._active += 1
            if self._active == 1:
                self._busy_since = time.perf_counter()

    def _leave(self) -> None:
        with self._lock:
            self._active -= 1
            if self._active == 0:
                self._busy += time.perf_counter() - self._busy_since


class _File:
    """One open file: direct where the file system allows it, positioned reads safe from several threads."""

    def __init__(self, path: Path, tell_buffered: Callable[[Path], None]) -> None:
        self._path, self._tell_buffered = path, tell_buffered
        self._seek_lock = threading.Lock()
        self._is_direct = True
        try:
            self._descriptor = self._open_direct()
        except OSError:
            self._fall_back()

    def _open_direct(self) -> int:
        if sys.platform == "darwin":
            descriptor = os.open(self._path, _FLAGS)
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
            return descriptor
        if not hasattr(os, "O_DIRECT"):
            raise OSError(errno.EINVAL, "no direct reads on this system")
        return os.open(self._path, _FLAGS | os.O_DIRECT)

    def _fall_back(self) -> None:
        self._descriptor = os.open(self._path, _FLAGS)
        self._is_direct = False
        self._tell_buffered(self._path)

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; returns the bytes read, fewer only at the end of the file."""
        got = 0
        while got < len(target):
            count = self._read_direct_or_buffered(offset + got, target[got:])
            got += count
            if count == 0 or (self._is_direct and count % BLOCK):  # only the file's tail is no whole block
                break
        return got

    def _read_direct_or_buffered(self, offset: int, target: memoryview) -> int:
        """Some file systems grant a direct open and refuse the read."""
        try:
            return self._read_some(offset, target)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        with self._seek_lock:
            if self._is_direct:
                refused = self._descriptor
                self._fall_back()
                os.close(refused)
        return self._read_some(offset, target)

    def _read_some(self, offset: int, target: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [target], offset)
        with self._seek_lock:  # Windows has no positioned read in the standard library
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            data = os.read(self._descriptor, len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        os.close(self._descriptor)


def _read_failed(run: Run, reason: str) -> EngineError:
    return EngineError(
        "disk.read_failed",
        f"Reading {run.file.name} failed at byte {run.offset}: {reason}.",
        f"Check that the drive of {run.file.parent} is connected and healthy, then restart the engine.",
    )
