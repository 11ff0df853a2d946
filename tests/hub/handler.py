"""One connection to the fake hub: HTTP/1.1 with ranges, If-Range and kept connections."""

import contextlib
import os
import re
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.hub.server import Server

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass(frozen=True)
class Blob:
    """What a file holds: bytes in memory or a path, and the ETag that goes with it (empty: none is sent)."""

    content: bytes | Path
    etag: str = ""

    @property
    def size(self) -> int:
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)

    def bytes(self) -> bytes:
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_GET(self) -> None:
        self._position = self._end = 0
        self.sent = 0
        with contextlib.suppress(ConnectionError):
            self.server.serve(self)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, code: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.server.note(self, code)
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self, blob: Blob, *, honours_ranges: bool = True) -> None:
        """Status and headers for what is asked of `blob`; `send_some` sends its bytes."""
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        condition = self.headers.get("If-Range", "")
        if match and honours_ranges and (not condition or condition == blob.etag):
            first = int(match[1])
            last = min(int(match[2] or blob.size), blob.size - 1)
            if first >= blob.size:
                self.answer(416, headers={"Content-Range": f"bytes */{blob.size}"})
                return
            code, headers = 206, {"Content-Range": f"bytes {first}-{last}/{blob.size}"}
        else:
            code, first, last, headers = 200, 0, blob.size - 1, {}
        self.server.note(self, code)
        self.send_response(code)
        headers |= {"Content-Length": str(last - first + 1), "Content-Type": "application/octet-stream"}
        for name, value in (headers | ({"ETag": blob.etag} if blob.etag else {})).items():
            self.send_header(name, value)
        self.end_headers()
        self._position, self._end = first, last + 1

    def send_some(self, blob: Blob, count: int) -> bool:
        """The next bytes of the range; False where there are none left."""
        count = min(count, self._end - self._position)
        if count <= 0:
            return False
        if isinstance(blob.content, Path):
            with blob.content.open("rb") as stream:
                count = os.sendfile(self.connection.fileno(), stream.fileno(), self._position, count)
        else:
            self.wfile.write(blob.content[self._position : self._position + count])
        self._position += count
        self.server.note_sent(count)
        return True

    def send_file(self, blob: Blob, *, honours_ranges: bool = True) -> None:
        self.begin(blob, honours_ranges=honours_ranges)
        while self.send_some(blob, 1 << 20):
            pass

    def end_connection(self) -> None:
        self.close_connection = True
        self.connection.close()
