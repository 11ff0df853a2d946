"""Turns the way in which a child ended into a sentence for the person. No Qt, no process: values in, text out."""

import re
from collections.abc import Sequence

_SIGNALS = {
    4: "was stopped by an instruction that this processor lacks (signal 4)",
    6: "stopped itself after an internal error (signal 6)",
    7: "could not read memory (signal 7): usually a model file changed or its drive went away",
    9: "was killed (signal 9): usually the system ran out of memory",
    11: "crashed (signal 11)",
    15: "was ended from outside (signal 15)",
}
_WINDOWS = {
    0xC0000005: "crashed (access violation)",
    0xC0000006: "could not read a file in use: usually the drive went away",
    0xC0000017: "ran out of memory",
    0xC000001D: "was stopped by an instruction that this processor lacks",
    0xC000012D: "ran out of memory: the page file is too small",
    0xC0000135: "could not start: a system library (DLL) is missing",
    0xC0000409: "stopped itself after an internal error",
}
_MEMORY = re.compile(r"out of memory|MemoryError|bad_alloc|cannot allocate memory", re.IGNORECASE)
_MODULE = re.compile(r"No module named '?([\w.]+)")


def explain_exit(code: int, is_crash: bool, stderr: Sequence[str] = ()) -> str:
    """`code` is the signal when `is_crash` on POSIX, else the exit code; `stderr` are the last lines of the child."""
    unsigned = code & 0xFFFFFFFF
    if unsigned in _WINDOWS:
        return f"The engine {_WINDOWS[unsigned]}."
    text = "\n".join(stderr[-10:])
    number = code if is_crash else code - 128  # a shell reports signal n as exit code 128 + n
    if _MEMORY.search(text):
        return "The engine ran out of memory."
    if number in _SIGNALS:
        return f"The engine {_SIGNALS[number]}."
    if is_crash:
        return f"The engine crashed (signal {code})."
    if code == 0:
        return "The engine ended by itself."
    if module := _MODULE.search(text):
        return f"The engine could not start: the Python package {module[1]} is missing."
    return f"The engine stopped with exit code {code}."
