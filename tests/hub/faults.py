"""What the fake hub can do wrong with one request for a file."""

import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Protocol

from tests.hub.handler import Blob, Handler


class Fault(Protocol):
    def __call__(self, handler: Handler, blob: Blob) -> None: ...


@dataclass(frozen=True)
class Status:
    """A bare status, with headers such as Retry-After or X-Error-Code."""

    code: int
    headers: dict[str, str] = field(default_factory=dict)

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.answer(self.code, b"no", self.headers)


@dataclass(frozen=True)
class Page:
    """A sign-in page with status 200, as proxies send."""

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.answer(200, b"<html>Please sign in</html>", {"Content-Type": "text/html; charset=utf-8"})


@dataclass(frozen=True)
class Reset:
    """The connection is reset after so many bytes."""

    after: int

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.begin(blob)
        handler.send_some(blob, self.after)
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.end_connection()


@dataclass(frozen=True)
class Cut:
    """The connection ends politely after so many bytes."""

    after: int

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.begin(blob)
        handler.send_some(blob, self.after)
        handler.end_connection()


@dataclass(frozen=True)
class Stall:
    """Nothing more after so many bytes; the connection stays open."""

    after: int

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.begin(blob)
        handler.send_some(blob, self.after)
        handler.server.hang.wait(60)
        handler.end_connection()


@dataclass(frozen=True)
class Drip:
    """One byte after another, so slowly that it never ends."""

    seconds_per_byte: float = 0.1

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.begin(blob)
        while not handler.server.hang.wait(self.seconds_per_byte) and handler.send_some(blob, 1):
            pass
        handler.end_connection()


@dataclass(frozen=True)
class Slow:
    """As asked, at a rate."""

    bytes_per_second: float

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.begin(blob)
        while handler.send_some(blob, 1 << 16):
            time.sleep((1 << 16) / self.bytes_per_second)


@dataclass(frozen=True)
class Flipped:
    """One bit of the content is wrong."""

    offset: int

    def __call__(self, handler: Handler, blob: Blob) -> None:
        content = bytearray(blob.bytes())
        content[self.offset] ^= 1
        handler.send_file(Blob(bytes(content), blob.etag))


@dataclass(frozen=True)
class Other:
    """Another content of the same length, under another ETag: what came before does not belong to it."""

    content: bytes
    etag: str

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.send_file(Blob(self.content, self.etag))


@dataclass(frozen=True)
class Whole:
    """The range is not honoured: status 200 and the file from its start."""

    def __call__(self, handler: Handler, blob: Blob) -> None:
        handler.send_file(blob, honours_ranges=False)
