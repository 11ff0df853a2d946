"""Drives a real engine child over the wire, as the window does."""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType

from engine.protocol import Message, ProtocolError, decode, encode

ROOT = Path(__file__).resolve().parents[2]


class HostClient:
    """`python -m engine host` with its events in a queue. `bad_lines` counts stdout lines that were no message."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine", "host"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.bad_lines = 0
        self._events: Queue[Message] = Queue()
        self._errors: list[bytes] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        assert self.process.stdin
        self.process.stdin.write(encode(message).encode() + b"\n")
        self.process.stdin.flush()

    def send_raw(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def until(self, is_last: Callable[[Message], bool], seconds: float = 60) -> list[Message]:
        """Events up to and with the first for which `is_last` holds."""
        events: list[Message] = []
        deadline = time.monotonic() + seconds
        while not events or not is_last(events[-1]):
            try:
                events.append(self._events.get(timeout=max(0.0, deadline - time.monotonic())))
            except Empty:
                raise AssertionError(f"no such event in {seconds} s; got {events}; log: {b''.join(self._errors)!r}") from None
        return events

    def wait_for(self, kind: type, seconds: float = 60) -> list[Message]:
        return self.until(lambda message: isinstance(message, kind), seconds)

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                self._events.put(decode(line))
            except ProtocolError:
                self.bad_lines += 1

    def _read_errors(self) -> None:
        assert self.process.stderr
        self._errors.extend(self.process.stderr)

    def __enter__(self) -> "HostClient":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream
            with contextlib.suppress(BrokenPipeError):
                stream.close()
