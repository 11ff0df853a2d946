"""The checksum of a file while it arrives: of a piece just written where it comes in order, else read from the drive."""

import hashlib
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from engine.store.modest import modest
from engine.store.part import PIECE, PartFile, aligned_buffer


class Digest(Protocol):
    def update(self, data: memoryview | bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def new_digest(checksum: str, size: int) -> Digest:
    """For "sha256:…" or git's "git-sha1:…", which counts a head in (source: git hash-object)."""
    if checksum.startswith("git-sha1:"):
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(f"blob {size}\0".encode())
        return digest
    return hashlib.sha256()


def file_matches(path: Path, size: int, checksum: str, is_stopped: Callable[[], bool] = lambda: False) -> bool:
    """Whether a finished file is what it should be; of its size alone where no checksum is known. Raises OSError."""
    if path.stat().st_size != size:
        return False
    if not checksum:
        return True
    digest, buffer = new_digest(checksum, size), memoryview(bytearray(PIECE))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
            if is_stopped():
                return False
    return checksum == _named(checksum, digest)


class StreamHash:
    """Runs on its own thread from `start` to the end of the file or `stop`.

    A piece given to `offer` belongs to it until `release` is called with it. `ended` is called last, with what went wrong.
    """

    def __init__(
        self, part: PartFile, release: Callable[[memoryview], None], ended: Callable[[BaseException | None], None]
    ) -> None:
        self._part, self._release, self._ended = part, release, ended
        self._digest = new_digest(part.head.checksum, part.head.size)
        self._queue: deque[tuple[memoryview, int]] = deque()
        self._next = 0  # the offset after all that is hashed or queued
        self._is_stopped = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=modest(self._run), name="hash", daemon=True)
        self.hashed_bytes = 0

    @property
    def is_done(self) -> bool:
        return self.hashed_bytes >= self._part.head.size

    @property
    def matches(self) -> bool:
        checksum = self._part.head.checksum
        return not checksum or checksum == _named(checksum, self._digest)

    def start(self) -> None:
        self._thread.start()

    def offer(self, offset: int, piece: memoryview, count: int) -> bool:
        """Of a piece that has been written. False: it is not the next, and will be read from the drive in its turn."""
        with self._changed:
            is_next = offset == self._next
            if is_next:
                self._queue.append((piece, count))
                self._next += count
            self._changed.notify()
            return is_next

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        own = aligned_buffer(PIECE)
        try:
            while not self.is_done and (work := self._wait()) is not None:
                piece, count = work
                if piece is None:
                    piece = own
                    self._part.read(self.hashed_bytes, own[:count])
                self._digest.update(piece[:count])
                self.hashed_bytes += count
                if piece is not own:
                    self._release(piece)
        except BaseException as error:
            self._ended(error)
        else:
            self._ended(None)

    def _wait(self) -> tuple[memoryview | None, int] | None:
        """The next piece, or None for it where it must be read; None when stopped."""
        with self._changed:
            while not self._is_stopped:
                if self._queue:
                    return self._queue.popleft()
                there = self._part.end_of(self._next) - self._next
                if there > 0:
                    count = min(there, PIECE - self._next % PIECE)
                    self._next += count
                    return None, count
                self._changed.wait()
            return None


def _named(checksum: str, digest: Digest) -> str:
    return f"{checksum.partition(':')[0]}:{digest.hexdigest()}"
