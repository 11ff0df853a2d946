"""Runs a chat template in a child, since it is a foreign program: one call into C may ask for any amount of time or memory."""

import contextlib
import json
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import psutil

from engine.hardware.child import module_command

_SECONDS = 5.0  # for one rendering; of the longest conversations it takes some tens of milliseconds
_START_SECONDS = 60.0  # Python from a cold hard disk
_BYTES = 512 << 20
_TICK_SECONDS = 0.02


class TemplateFault(Exception):  # noqa: N818 - the template's, which the caller words for a person
    """`line` of the template, where it is known; `is_refusal` where its own words say why it takes no such conversation."""

    def __init__(self, text: str, line: int | None = None, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.line, self.is_refusal = line, is_refusal


class Renderer:
    """One compiled template. The child is started when needed, ended when this object goes."""

    def __init__(self, source: str) -> None:
        """Raises `TemplateFault` where it does not compile."""
        self._source = source
        self._child: subprocess.Popen[bytes] | None = None
        self._forget: Callable[[], object]
        self.variables: dict[str, list[str]] = self._start()  # that it reads, each with the texts that stand beside it

    def render(self, variables: dict[str, Any]) -> str:
        """Raises `TemplateFault`."""
        if self._child is None:
            self._start()
        text: str = self._ask(json.dumps(variables), _SECONDS)["text"]
        return text

    def _start(self) -> dict[str, list[str]]:
        try:
            self._child = subprocess.Popen(
                module_command("engine.text.sandbox"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
            )
        except OSError as error:
            raise TemplateFault(f"its process could not be started: {error.strerror or error}") from error
        self._forget = weakref.finalize(self, _end, self._child)
        self._ask("", _START_SECONDS)
        first = json.dumps({"source": self._source, "seconds": _SECONDS})
        found: dict[str, list[str]] = self._ask(first, _SECONDS)["variables"]
        return found

    def _ask(self, request: str, seconds: float) -> dict[str, Any]:
        """The reply to a line, or to nothing. A child that takes too much is killed; the next request starts another."""
        child = self._child
        assert child is not None, "the child has been started"
        assert child.stdin is not None, "its pipes are open"
        assert child.stdout is not None, "its pipes are open"
        watch = _Watch(child, seconds)
        line = b""
        with watch, contextlib.suppress(OSError):
            if request:
                child.stdin.write(request.encode() + b"\n")
                child.stdin.flush()
            line = child.stdout.readline()
        if not line.endswith(b"\n"):
            self._forget()
            self._child = None
            raise TemplateFault(watch.reason or "its process ended")
        reply: dict[str, Any] = json.loads(line)
        if "refused" in reply:
            raise TemplateFault(reply["refused"], is_refusal=True)
        if "error" in reply:
            raise TemplateFault(reply["error"], reply["line"])
        return reply


class _Watch:
    """Kills a child that is at work for too long or grows too large, and says why."""

    def __init__(self, child: "subprocess.Popen[bytes]", seconds: float) -> None:
        self._child, self._seconds = child, seconds
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.reason = ""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _look(self) -> None:
        end = time.monotonic() + self._seconds
        while not self._is_done.wait(_TICK_SECONDS):
            if time.monotonic() > end:
                self.reason = f"it ran for more than {self._seconds:g} s"
            elif _resident_bytes(self._child.pid) > _BYTES:
                self.reason = f"it took more than {_BYTES >> 20} MiB of memory"
            if self.reason:
                self._child.kill()
                return


def _resident_bytes(pid: int) -> int:
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
