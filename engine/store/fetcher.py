"""One connection's loop: take a span of a file, fill pieces, hand them on, give back what did not come."""

import time
from typing import Protocol

from engine.store.part import BLOCK, PIECE
from engine.store.patience import Patience, Throttle
from engine.store.web import Answer, Connection, TransientError

_LEAST_STEP, _FIRST_STEP = 1 << 10, 16 << 10  # bytes read at once
_MOST_STEP = PIECE  # 0.30 s of a core per GB on loopback with 2 cores, where 256 KiB take 0.48 and 64 KiB 0.59: fewer wake-ups
_PIECE_SECONDS = 0.5  # a slow line fills no piece for a long time: what it brought is written and shown all the same


class Work(Protocol):
    """What a fetcher is given; every method may be called from any thread."""

    @property
    def patience(self) -> Patience: ...
    @property
    def throttle(self) -> Throttle: ...
    @property
    def is_over(self) -> bool: ...

    def connect(self) -> Connection: ...

    def next_span(self, index: int) -> tuple[int, int] | None:
        """What to ask for next, once it is this connection's turn; None when there is nothing left to do."""

    def ask(self, connection: Connection, first: int, end: int) -> Answer:
        """Send the request. Raises `TransientError`, `ChangedError` or `EngineError`."""

    def claim_all(self) -> bool:
        """The server sends the file from its start whatever is asked: one connection takes it all. False: another does."""

    def is_there(self, offset: int, count: int) -> bool:
        """Whether these bytes are on the drive already."""

    def take_piece(self) -> memoryview | None:
        """A free piece of `PIECE` bytes, waited for; None when all is over."""

    def put_back(self, piece: memoryview) -> None: ...

    def deliver(self, offset: int, piece: memoryview, count: int) -> None:
        """The piece belongs to the writer from now on."""

    def note_received(self, count: int) -> None: ...
    def note_failure(self, error: TransientError) -> None: ...

    def give_back(self, first: int, end: int) -> None:
        """The rest of a span; empty where all of it came."""

    def fail(self, error: BaseException) -> None: ...


class Fetcher:
    """`run` on a thread of its own; `abort` and `end_if_stalled` from the one that keeps watch."""

    def __init__(self, work: Work, index: int, size: int) -> None:
        self._work, self._index, self._size = work, index, size
        self._connection: Connection | None = None
        self._reading_since: float | None = None
        self._has_stalled = False
        self._step = _FIRST_STEP
        self._position = self._end = 0  # of the present span

    def run(self) -> None:
        try:
            while (span := self._work.next_span(self._index)) is not None:
                self._position, self._end = span
                try:
                    self._fetch()
                except TransientError as error:
                    self._note(error)
                finally:
                    self._reading_since = None
                    self._work.give_back(self._position, self._end)
        except BaseException as error:
            self._work.fail(error)
        finally:
            self._disconnect()

    def abort(self) -> None:
        if (connection := self._connection) is not None:
            connection.abort()

    def end_if_stalled(self, now: float, seconds: float) -> None:
        """Also of a server that drips: no step of at least a kilobyte may take that long."""
        since = self._reading_since
        if since is not None and now - since > seconds:
            self._has_stalled = True
            self.abort()

    def _note(self, error: TransientError) -> None:
        self._disconnect()
        if self._has_stalled:
            error = TransientError(f"nothing came for {self._work.patience.stall_seconds:.0f} s")
            self._has_stalled = False
        self._work.note_failure(error)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _fetch(self) -> None:
        if self._connection is None:
            self._connection = self._work.connect()
        self._reading_since = time.monotonic()
        answer = self._work.ask(self._connection, self._position, self._end)
        if answer.is_whole and (self._position, self._end) != (0, self._size):
            if not self._work.claim_all():
                self._position = self._end
                self._disconnect()
                return
            self._position, self._end = 0, self._size
        while self._position < self._end and (piece := self._take_piece()) is not None:
            self._fetch_piece(self._connection, piece)

    def _take_piece(self) -> memoryview | None:
        self._reading_since = None  # waiting for the drive is not the server's fault
        return self._work.take_piece()

    def _fetch_piece(self, connection: Connection, piece: memoryview) -> None:
        """Up to the next multiple of `PIECE`, what came in half a second, or before the connection broke, in whole blocks."""
        limit = min(self._end - self._position, PIECE - self._position % PIECE)
        count, full_at = 0, time.monotonic() + _PIECE_SECONDS
        try:
            while count < limit and not self._work.is_over:
                count += self._read(connection, piece[count:limit])
                if time.monotonic() > full_at:
                    limit = min(limit, -(-count // BLOCK) * BLOCK)
        finally:
            offset, usable = self._position, count if count == limit else count // BLOCK * BLOCK
            self._position += usable
            if usable and not self._work.is_there(offset, usable):
                self._work.deliver(offset, piece, usable)
            else:
                self._work.put_back(piece)
        if count < limit:
            raise TransientError("the transfer was ended")

    def _read(self, connection: Connection, view: memoryview) -> int:
        begun = self._reading_since = time.monotonic()
        wanted = min(len(view), self._work.throttle.step(self._step))
        count = connection.read_into(view[:wanted])
        if count == 0:
            raise TransientError("the connection ended early")
        self._reading_since = None
        seconds = time.monotonic() - begun
        if seconds < 0.05 and count == self._step:
            self._step = min(2 * self._step, _MOST_STEP)
        elif seconds > 0.5:
            self._step = max(self._step // 2, _LEAST_STEP)
        self._work.note_received(count)
        free_at = time.monotonic() + self._work.throttle.delay(count)
        while (rest := free_at - time.monotonic()) > 0 and not self._work.is_over:
            time.sleep(min(rest, 0.1))
        return count
