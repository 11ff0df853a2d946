"""Unbuffered reads straight into their final place, several in flight. Knows files and offsets, not what the bytes mean."""

import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.checkpoint.experts import Run
from engine.errors import EngineError
from engine.hardware.drive import drive_of
from engine.tiers.arena import BLOCK, align_up
from engine.tiers.file import DirectFile, Identity, identity_of

_FEWEST, _MOST = 3, 4
"""Reads in flight: three saturate the drive measured; more are begun in vain for guesses, and land later. Four serve faster
drives where there are cores for it."""

Done = queue.SimpleQueue[Any]


class Read:
    """One expert on its way. `cancel` from the thread that submitted it."""

    __slots__ = ("_bases", "_done", "_runs", "_target", "_turn", "ticket")

    def __init__(self, runs: Sequence[Run], bases: Sequence[int], target: memoryview, ticket: Any, done: Done) -> None:
        self._runs, self._bases, self._target, self._done = runs, bases, target, done
        self._turn = threading.Lock()
        self.ticket = ticket

    def cancel(self) -> bool:
        """True where it had not begun: then it never will, and its ticket does not come back."""
        return self._turn.acquire(blocking=False)

    def perform(self, reader: "DiskReader") -> None:
        """For the reader's threads."""
        if self._turn.acquire(blocking=False):
            self._done.put((self.ticket, *reader.read_runs(self._runs, self._bases, self._target)))


class DiskReader:
    """Blocking positioned reads in a few threads, first come first served.

    `notice` is empty while every file is read directly, else one sentence that says why not.
    """

    def __init__(self, in_flight: int | None = None) -> None:
        in_flight = in_flight or min(_MOST, max(_FEWEST, (os.cpu_count() or 1) // 2))
        self.notice = ""
        self._queue: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._files: dict[Path, DirectFile] = {}
        self._known: dict[Path, Identity] = {}
        self._given_up: list[DirectFile] = []
        self._lock = threading.Lock()
        self._active = 0
        self._busy_since = 0.0
        self._busy = 0.0
        self._threads = [threading.Thread(target=self._serve, name=f"disk-{n}", daemon=True) for n in range(in_flight)]
        for thread in self._threads:
            thread.start()

    def submit(self, runs: Sequence[Run], bases: Sequence[int], target: memoryview, ticket: Any, done: Done) -> Read:
        """Read every run into `target` at its base (see `run_bases`), then put `(ticket, bytes, error or None)` on `done`.

        The bytes are those of the runs that arrived, without what alignment adds. `target` belongs to the reader until the
        ticket is back or the read is cancelled.
        """
        read = Read(runs, bases, target, ticket, done)
        self._queue.put(read)
        return read

    def read(self, runs: Sequence[Run], bases: Sequence[int], target: memoryview) -> None:
        """The same, waiting for it. Raises `EngineError`."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.submit(runs, bases, target, None, done)
        _, _, error = done.get()
        if error is not None:
            raise error

    def check_files(self) -> None:
        """Raises `EngineError` for a file that is no longer the one from which reading began."""
        for path, known in list(self._known.items()):
            _check_same(path, known)

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
        """Waits for what is being read; what is only queued is dropped."""
        while not self._queue.empty():
            read = self._queue.get()
            assert read is not None, "closed twice"
            read.cancel()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for file in (*self._files.values(), *self._given_up):
            file.close()
        self._files.clear()
        self._given_up.clear()

    def _serve(self) -> None:
        while (read := self._queue.get()) is not None:
            read.perform(self)

    def read_runs(self, runs: Sequence[Run], bases: Sequence[int], target: memoryview) -> tuple[int, Exception | None]:
        """In this thread. What went wrong is returned: whoever waits for the ticket must get it."""
        arrived = 0
        self._enter()
        try:
            for run, base in zip(runs, bases, strict=True):
                self._read_run(run, target[base : base + align_up(run.offset % BLOCK + run.nbytes)])
                arrived += run.nbytes
        except Exception as error:
            return arrived, error
        finally:
            self._leave()
        return arrived, None

    def _read_run(self, run: Run, target: memoryview) -> None:
        """One aligned superset of a run. A failed read is tried once more, then named; a short read is never accepted."""
        start = run.offset // BLOCK * BLOCK
        needed = run.offset - start + run.nbytes
        for attempt in (1, 2):
            file = None
            try:
                file = self._file(run.file)
                got = file.read_into(start, target)
            except OSError as error:
                self._give_up(run.file, file)
                if attempt == 1:
                    continue
                raise _read_failed(run, error.strerror or str(error)) from error
            if got >= needed:
                return
        raise _read_failed(run, f"the file ends {needed - got} bytes early")

    def _file(self, path: Path) -> DirectFile:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = DirectFile(path, self._tell)
                self._files[path] = file
                if file.identity != self._known.setdefault(path, file.identity):
                    raise _changed(path)
            return file

    def _give_up(self, path: Path, file: DirectFile | None) -> None:
        """A descriptor of a drive that was away stays dead; the next read opens the file again. Others may still be reading."""
        with self._lock:
            if file is not None and self._files.get(path) is file:
                self._given_up.append(self._files.pop(path))

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


def _check_same(path: Path, known: Identity) -> None:
    try:
        found = identity_of(os.stat(path))
    except OSError as error:
        raise EngineError(
            "disk.file_lost",
            f"{path.name} cannot be reached on {drive_of(path).label}: {error.strerror or error}.",
            "Connect the drive or put the file back, then send the message again.",
        ) from error
    if found != known:
        raise _changed(path)


def _changed(path: Path) -> EngineError:
    return EngineError(
        "disk.file_changed",
        f"{path.name} on {drive_of(path).label} has changed since the model was loaded.",
        "Load the model again; if its download was not complete, let it finish first.",
    )


def _read_failed(run: Run, reason: str) -> EngineError:
    return EngineError(
        "disk.read_failed",
        f"Reading {run.file.name} on {drive_of(run.file).label} failed at byte {run.offset}: {reason}.",
        "Check that the drive is connected and healthy and that the file may be read, then send the message again.",
    )
