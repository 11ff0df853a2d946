"""One file from a server into a part file, by several ranges at once, checked while it arrives.

Four kinds of threads pass pieces on: fetchers (one per connection) fill them, a writer puts them on the drive, a hasher reads
them in order, and the caller of `run` keeps watch: it ends connections that hang, and everything when it is told to.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.errors import EngineError
from engine.store.fetcher import Fetcher
from engine.store.hashing import StreamHash
from engine.store.modest import modest
from engine.store.part import PIECE, PartFile, aligned_buffer
from engine.store.patience import Patience, Throttle
from engine.store.web import Answer, Connection, Line, StaleLinkError, StoppedError, TransientError
from engine.units import MB

_PIECES = 12  # of 1 MiB: what may be in memory between network, drive and hash
_SEGMENT = 64 << 20  # what one connection asks for at once
_ALONE_BYTES_PER_SECOND = 200 * MB  # a first connection that is faster needs no second
_TICK_SECONDS = 0.1
_END_SECONDS = 1.0


class ChangedError(Exception):
    """The server has another content now; `etag` is its mark."""

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one file: bytes on the drive, bytes of them hashed, bytes that came over the network since the start.

    `trouble` says why nothing comes, if so.
    """

    there_bytes: int
    hashed_bytes: int
    received_bytes: int
    trouble: str = ""


class Transfer:
    """Used once. `part` stays open; `run` returns whether the checksum is right."""

    def __init__(self, line: Line, url: str, part: PartFile, name: str, *, uses_etag: bool = True) -> None:
        self._line, self._url, self._part, self._name, self._uses_etag = line, url, part, name, uses_etag
        self._link = url  # where the first address leads to
        self._pieces: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._written: queue.SimpleQueue[tuple[int, memoryview, int] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()  # guards all below
        self._gaps = part.missing()
        self._in_flight = 0
        self._failures, self._try_again_at, self._trouble = 0, 0.0, ""
        self._delivered, self._delivered_at_failure = 0, -1
        self._error: BaseException | None = None
        self._is_over = self._is_one_stream = False
        self._fetchers = [Fetcher(self, index, part.head.size) for index in range(line.connections)]
        self._received = 0
        self._began_at = 0.0
        self._hash = StreamHash(part, self._pieces.put, self._hashed)

    def run(self, is_stopped: Callable[[], bool], report: Callable[[Standing], None]) -> bool:
        """Raises `StoppedError`, `ChangedError`, `DiskFullError`, OSError, or `EngineError` when patience is at its end."""
        for _ in range(_PIECES):
            self._pieces.put(aligned_buffer(PIECE))
        writer = threading.Thread(target=modest(self._write), name="write", daemon=True)
        threads = [writer, *(threading.Thread(target=modest(one.run), name="fetch", daemon=True) for one in self._fetchers)]
        self._began_at = time.monotonic()
        self._hash.start()
        for thread in threads:
            thread.start()
        try:
            while self._error is None and not self._hash.is_done:
                if is_stopped():
                    raise StoppedError
                with self._changed:
                    if self._error is None and not self._hash.is_done:
                        self._changed.wait(_TICK_SECONDS)
                self._watch()
                report(self._standing())
        finally:
            self._end(threads)
        if self._error is not None:
            raise self._error
        report(self._standing())
        return self._hash.matches

    # Work for the fetchers, see `Work`

    @property
    def patience(self) -> Patience:
        return self._line.patience

    @property
    def throttle(self) -> Throttle:
        return self._line.throttle

    @property
    def is_over(self) -> bool:
        return self._is_over

    def connect(self) -> Connection:
        return self._line.connect()

    def next_span(self, index: int) -> tuple[int, int] | None:
        with self._changed:
            while not self._is_over and (self._gaps or self._in_flight):
                now = time.monotonic()
                if self._gaps and now >= self._try_again_at and self._may_join(index, now):
                    first, end = self._gaps.pop(0)
                    cut = min(end, (first // _SEGMENT + 1) * _SEGMENT)
                    if cut < end:
                        self._gaps.insert(0, (cut, end))
                    self._in_flight += 1
                    return first, cut
                self._changed.wait(_TICK_SECONDS)
            return None

    def give_back(self, first: int, end: int) -> None:
        with self._changed:
            self._in_flight -= 1
            if first < end:
                self._gaps = self._part.missing() if self._is_one_stream else sorted([*self._gaps, (first, end)])
                self._is_one_stream = False
            self._changed.notify_all()

    def ask(self, connection: Connection, first: int, end: int) -> Answer:
        known = self._part.head.etag if self._uses_etag else ""
        answer = connection.open(self._link, first, end, known)
        self._check(answer, first, known)
        with self._changed:
            self._link = answer.url
            if answer.etag and not self._part.head.etag:
                self._part.note_etag(answer.etag)
        return answer

    def claim_all(self) -> bool:
        with self._changed:
            if self._is_one_stream:
                return False
            self._is_one_stream, self._gaps = True, []
            return True

    def is_there(self, offset: int, count: int) -> bool:
        return self._part.end_of(offset) >= offset + count

    def take_piece(self) -> memoryview | None:
        return self._pieces.get()

    def put_back(self, piece: memoryview) -> None:
        self._pieces.put(piece)

    def deliver(self, offset: int, piece: memoryview, count: int) -> None:
        with self._changed:
            self._delivered += count
        self._written.put((offset, piece, count))

    def note_received(self, count: int) -> None:
        with self._changed:
            self._received += count
            self._trouble = ""

    def note_failure(self, error: TransientError) -> None:
        """All connections wait; after too many failures without a byte between them it is given up."""
        with self._changed:
            now = time.monotonic()
            if isinstance(error, StaleLinkError) and self._link != self._url:
                self._link = self._url
                return
            if now < self._try_again_at or self._is_over:
                return  # the same trouble, told by another connection
            self._failures = self._failures + 1 if self._delivered == self._delivered_at_failure else 1
            self._delivered_at_failure = self._delivered
            if self._failures > self.patience.retries:
                text = f"{self._name} could not be brought in {self._failures} attempts: {error.reason}."
                self._error = EngineError("download.gave_up", text, "What has arrived is kept. Resume it later.")
                return
            wait = max(error.wait_seconds, self.patience.wait_seconds(self._failures))
            self._try_again_at = now + wait
            self._trouble = f"{error.reason}; trying again in {wait:.0f} s"

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # Of `run`

    def _may_join(self, index: int, now: float) -> bool:
        if index == 0:
            return True
        seconds = now - self._began_at
        return not self._is_one_stream and seconds > 1 and self._received / seconds < _ALONE_BYTES_PER_SECOND

    def _check(self, answer: Answer, first: int, known_etag: str) -> None:
        """Raises `ChangedError` or `TransientError` where it is not what was asked for."""
        size = self._part.head.size
        if answer.is_page:
            raise TransientError("a web page came in place of the file, from a proxy or a sign-in page")
        if answer.size is not None and answer.size != size:
            raise TransientError(f"the server has {answer.size} bytes of it where the Hub lists {size}")
        if answer.is_whole and known_etag and answer.etag and answer.etag != known_etag:
            raise ChangedError(answer.etag)
        if not answer.is_whole and answer.first != first:
            raise TransientError("the server sent other bytes than those asked for")

    def _watch(self) -> None:
        now = time.monotonic()
        for fetcher in self._fetchers:
            fetcher.end_if_stalled(now, self.patience.stall_seconds)

    def _hashed(self, error: BaseException | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _standing(self) -> Standing:
        return Standing(self._part.nbytes, self._hash.hashed_bytes, self._received, self._trouble)

    def _write(self) -> None:
        try:
            while (item := self._written.get()) is not None:
                offset, piece, count = item
                self._part.write(offset, piece[:count])
                if not self._hash.offer(offset, piece, count):
                    self._pieces.put(piece)
        except BaseException as error:
            self.fail(error)

    def _end(self, threads: list[threading.Thread]) -> None:
        """What came in whole blocks is written by the end; a thread that still waits for a connection finds it closed."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for fetcher in self._fetchers:
            fetcher.abort()
            self._pieces.put(None)
        for thread in threads[1:]:
            thread.join(_END_SECONDS)
        self._written.put(None)
        threads[0].join()
        self._hash.stop()
