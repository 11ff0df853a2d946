"""Starts Stoker from a clone: `python3 installers/start.py`, or `python3 installers/start.py test`.

This file only makes sure of a Python that can run the rest, so it keeps to what Python 3.6 can read.
"""

import os
import shutil
import subprocess
import sys

OLDEST = (3, 11)
NEWEST = (3, 14)  # PySide6 6.11 installs on nothing newer
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.14", "python3", "python")


def is_usable(version: "tuple[int, ...]") -> bool:
    return OLDEST <= tuple(version[:2]) <= NEWEST


def version_of(python: str) -> "tuple[int, ...] | None":
    """(3, 12) of an interpreter, or None where it does not run: a version manager's stand-in, for example."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        answer = subprocess.check_output([python, "-c", code], stderr=subprocess.DEVNULL, timeout=20)
        return tuple(int(part) for part in answer.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def find_usable() -> "str | None":
    """The path of a Python on PATH that can run Stoker."""
    for name in CANDIDATES:
        path = shutil.which(name)
        version = version_of(path) if path else None
        if version is not None and is_usable(version):
            return path
    return None


def unusable_text(version: "tuple[int, ...]", executable: str) -> str:
    """What is wrong with this Python and how to get another."""
    found = f"this is {version[0]}.{version[1]} at {executable}."
    if tuple(version[:2]) > NEWEST:
        text = f"Stoker runs on Python 3.11 to {NEWEST[0]}.{NEWEST[1]} so far; {found}"
    else:
        text = f"Stoker needs Python 3.11 or newer; {found}"
    return (
        f"{text}\nGet one: on Debian or Ubuntu `sudo apt install python3.11 python3.11-venv` (or the newer one that it offers),"
        "\non macOS `brew install python@3.13`, on Windows `winget install Python.Python.3.13`. Then run this command again."
    )


def main() -> int:
    if is_usable(sys.version_info[:2]):
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        sys.path[0] = root
        from installers.commands import run

        return run(root, sys.argv[1:])
    other = find_usable()
    if other is None:
        print(unusable_text(sys.version_info[:2], sys.executable))
        return 1
    print(f"This is Python {sys.version_info[0]}.{sys.version_info[1]}, which cannot run Stoker; continuing with {other}.")
    sys.stdout.flush()
    return subprocess.call([other, os.path.abspath(__file__), *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
