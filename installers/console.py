"""Progress in a terminal or a log: one line per stage. Knows nothing of what is being done."""

import sys
import time
from typing import TextIO

DOTS = 20


class Stage:
    """A line that fills up: a percentage where the terminal can rewrite it, dots elsewhere. Always call `done` or `failed`."""

    def __init__(self, title: str, out: TextIO | None = None) -> None:
        self._out = sys.stdout if out is None else out
        self._title = title
        self._is_terminal = self._out.isatty()
        self._dots = 0
        self._started = time.monotonic()
        self._write(f"  {title} ")

    def update(self, share: float, detail: str = "") -> None:
        """`share` from 0 to 1 of the stage."""
        if self._is_terminal:
            self._write(f"\r\033[K  {self._title} {100 * min(share, 1.0):3.0f} %  {detail[:40]}")
            return
        missing = int(min(share, 1.0) * DOTS) - self._dots
        if missing > 0:
            self._dots += missing
            self._write("." * missing)

    def done(self, note: str = "") -> None:
        if self._dots and not self._is_terminal:
            self.update(1.0)
        self._end(f"done, {time.monotonic() - self._started:.0f} s{f' ({note})' if note else ''}")

    def failed(self) -> None:
        self._end("stopped")

    def _end(self, text: str) -> None:
        if self._is_terminal:
            self._write(f"\r\033[K  {self._title} {text}\n")
        else:
            self._write(f"{' ' if self._dots else ''}{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
