"""Builds the native kernels into this folder with whatever compiler there is. Standard library only: it may run first of all.

`python -m engine.kernels.build`
"""

import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
LIBRARY = FOLDER / ("stoker_kernels" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))
_SECONDS = 600


def build(target: Path = FOLDER) -> Path | str:
    """The library's path, or a sentence that says why there is none."""
    cmake = shutil.which("cmake")
    if cmake is None:
        return "The native kernels were not built: CMake is not installed."
    if sys.platform != "win32" and not any(map(shutil.which, ("c++", "g++", "clang++"))):
        return "The native kernels were not built: no C++ compiler is installed."
    if not (ROOT / "CMakeLists.txt").is_file():
        return "The native kernels were not built: their sources are not part of this installation."
    with tempfile.TemporaryDirectory(prefix="stoker-build-") as scratch:
        built = Path(scratch, "out")
        steps = (
            [cmake, "-S", str(ROOT), "-B", scratch, "-DCMAKE_BUILD_TYPE=Release", f"-DSTOKER_OUTPUT={built}"],
            [cmake, "--build", scratch, "--config", "Release", "--parallel", "2"],
        )
        for step in steps:
            error = _run(step)
            if error:
                return f"The native kernels were not built: {error}"
        library = next(built.rglob(LIBRARY.name), None)
        if library is None:
            return f"The native kernels were not built: the compiler left no {LIBRARY.name}."
        return _install(library, target / LIBRARY.name)


def _run(command: list[str]) -> str:
    """The first line that says what went wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = (done.stderr + done.stdout).splitlines()
    return next((line.strip() for line in lines if "error" in line.lower()), f"{Path(command[0]).name} failed")


def _install(library: Path, target: Path) -> Path | str:
    """Replace, never overwrite: a running engine may have the old library open."""
    fresh = target.with_suffix(".new")
    try:
        shutil.copyfile(library, fresh)
        fresh.replace(target)
    except OSError as error:
        return f"The native kernels cannot be written to {target.parent}: {error.strerror or error}."
    return target


def main() -> int:
    result = build()
    sys.stdout.write(f"{result}\n")
    if isinstance(result, str):
        sys.stdout.write(f"On {platform.machine()} the slow reference kernels serve instead.\n")
    return 1 if isinstance(result, str) else 0


if __name__ == "__main__":
    sys.exit(main())
