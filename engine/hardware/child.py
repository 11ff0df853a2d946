"""Short-lived children for what can crash or hang a driver: `python -m engine.hardware.nvml` and `.torch_child`.

A child writes one JSON object. Whatever else happens to it is a fact with its evidence, and never the parent's end.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_SECONDS = {"nvml": 10.0, "torch_child": 60.0}  # torch from a cold drive takes tens of seconds
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Reply:
    """`fault` ends the sentence "The probe of ... "; `facts` are then empty."""

    facts: dict[str, Any]
    fault: str = ""


def module_command(module: str, *arguments: str) -> list[str]:
    """Runs a module of this package, whose folder comes last in the path: nothing beside it may hide one of Python's own."""
    code = f"import runpy, sys; sys.path.append({str(_ROOT)!r}); runpy.run_module({module!r}, run_name='__main__')"
    return [sys.executable, "-P", "-c", code, *arguments]


def ask_child(name: str) -> Reply:
    """What the child `name` found; it is killed at its limit, and left behind where the system cannot kill it."""
    return run_child(module_command(f"engine.hardware.{name}"), LIMIT_SECONDS[name])


def run_child(command: list[str], limit_seconds: float) -> Reply:
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except OSError as error:
        return Reply({}, f"could not be started ({error.strerror or error})")
    try:
        out, err = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Reply({}, f"gave no answer in {limit_seconds:.0f} s and was ended")
    if process.returncode != 0:
        return Reply({}, _end_of(process.returncode, err))
    try:
        facts = json.loads(out)
    except ValueError:
        return Reply({}, f"answered with something else ({out[:80]!r})")
    return Reply(facts) if isinstance(facts, dict) else Reply({}, f"answered with something else ({out[:80]!r})")


def answer(read: Callable[[], dict[str, Any]]) -> None:
    """A child's whole life. What a driver prints to stdout lands on stderr instead."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    facts = read()
    json.dump(facts, out)
    out.flush()
    os._exit(0)  # a driver's own clean-up at exit may hang or crash, after the answer is known


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """One that waits inside a broken driver cannot be killed: it is not waited for."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.returncode is None:
        process.returncode = -signal.SIGTERM  # so that Popen does not warn of it when it is forgotten


def _end_of(code: int, err: bytes) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"crashed ({signal.Signals(-code).name})"
    last = err.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"ended with code {code}" + (f" ({last[0][:200]})" if last else "")
