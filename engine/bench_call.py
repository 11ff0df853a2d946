"""Runs `engine.bench_child` and waits for it: the parent stays free of tensor libraries, a crash ends no more."""

import contextlib
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.hardware.child import module_command
from engine.store.web import StoppedError

_SILENCE_SECONDS = 60.0  # torch from a cold drive takes tens of seconds
_LIMIT_SECONDS = 120.0
_GRACE_SECONDS = 2.0
_TICK_SECONDS = 0.1
_AGAIN = "Try again; without it Stoker runs all the same, and foretells nothing."

Progress = Callable[[str, int, int], object]  # stage, done, total


def run_bench(folder: Path, progress: Progress, is_stopped: Callable[[], bool], command: list[str] | None = None) -> None:
    """Measure this computer with the drive of `folder`; what was found is in the notebook then.

    Raises `EngineError`, and `StoppedError` when told to stop. The child is gone when this returns.
    """
    process = _start(command or module_command("engine.bench_child", str(folder)))
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        _follow(process, lines, progress, is_stopped)
    finally:
        _end(process)
        reader.join(_GRACE_SECONDS)


def _follow(
    process: "subprocess.Popen[bytes]",
    lines: "queue.SimpleQueue[bytes | None]",
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> None:
    begun = heard = time.monotonic()
    while True:
        if is_stopped():
            raise StoppedError
        try:
            line = lines.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            now = time.monotonic()
            if now - heard > _SILENCE_SECONDS or now - begun > _LIMIT_SECONDS:
                text = f"The measurement gave no answer in {now - begun:.0f} s and was ended."
                raise EngineError("bench.hung", text, _AGAIN) from None
            continue
        if line is None:
            raise EngineError("bench.died", f"The measurement {_how_ended(process)}.", _AGAIN)
        heard, told = time.monotonic(), _parsed(line)
        if "error" in told:
            raise EngineError(*map(str, told["error"]))
        if "done" not in told:
            continue
        if told.get("is_over"):
            return
        progress(str(told["stage"]), int(told["done"]), int(told["total"]))


def _start(command: list[str]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,  # the log of whoever started this process
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        text = f"The measurement could not be started: {error.strerror or error}."
        raise EngineError("bench.start", text, _AGAIN) from error


def _read(process: "subprocess.Popen[bytes]", lines: "queue.SimpleQueue[bytes | None]") -> None:
    assert process.stdout is not None, "stdout is a pipe"
    with contextlib.suppress(OSError, ValueError), process.stdout as out:
        for line in out:
            lines.put(line)
    lines.put(None)


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _how_ended(process: "subprocess.Popen[bytes]") -> str:
    try:
        code = process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return "stopped talking"
    if code < 0:
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            return "was killed, perhaps for lack of memory" if name == "SIGKILL" else f"crashed ({name})"
    return f"ended with code {code}"


def _end(process: "subprocess.Popen[bytes]") -> None:
    """A closed stdin tells it to clean up and end."""
    assert process.stdin is not None, "stdin is a pipe"
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
