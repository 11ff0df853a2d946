"""Builds the native kernels in the clone, once for each state of their sources. Without a compiler Stoker runs on, slower."""

import hashlib
import os
import subprocess
from pathlib import Path

from installers.console import Stage
from installers.environment import Environment
from installers.processes import captured

SOURCES = ("CMakeLists.txt", "engine/kernels/cpu", "engine/kernels/build.py")


def build_kernels_once(environment: Environment) -> None:
    """Says what happened; a failure is tried again at the next start, since a compiler may have come."""
    done = environment.folder / "kernels-built"
    key = sources_hash(environment.root)
    if done.exists() and done.read_text(encoding="ascii") == key:
        return
    stage = Stage("Native kernels")
    search = os.pathsep.join((str(environment.scripts), os.environ.get("PATH", "")))
    built = captured([environment.python, "-P", "-m", "engine.kernels.build"], variables={"PATH": search})
    if built.returncode == 0:
        stage.done()
        done.write_text(key, encoding="ascii")
    else:
        stage.failed()
        print(f"  {_first_line(built)}\n  Stoker runs without them, several times slower.")


def sources_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        path = root / name
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _first_line(done: "subprocess.CompletedProcess[str]") -> str:
    return next((line for line in (done.stdout + done.stderr).splitlines() if line.strip()), "The build gave no reason.")
