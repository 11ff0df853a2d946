"""What `start.py` can be asked for: the window, the terminal, the tests, the command line. Sets up first where needed."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from installers.environment import Environment
from installers.kernels import build_kernels_once
from installers.problems import SetupError
from installers.processes import captured
from installers.torch_build import KINDS, Kind

USAGE = """Usage: python3 installers/start.py [--torch cpu|cuda|rocm] [--terminal | test [PYTEST ARGS] | stoker [ARGS]]

  (nothing)    set up what is missing and open the window; without a display, chat in the terminal
  --terminal   chat in the terminal
  test         set up and run every check: ruff, mypy, the import contracts, pytest
  stoker       run the command line, for example: stoker --help
  --torch      take this build of torch instead of the one that fits the machine's driver
"""
_MOST_PROCESSES = 4  # of tests at once: each may take some gigabytes
Action = Literal["start", "terminal", "test", "stoker", "help", "unknown"]
# Debian's names for what Qt loads at run time and its wheel does not carry.
QT_PACKAGES = (
    "libegl1 libgl1 libxkbcommon-x11-0 libdbus-1-3 libfontconfig1 libglib2.0-0 libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1 "
    "libxcb-image0 libxcb-render-util0 libxcb-shape0 libxcb-xkb1"
)


class Wanted(NamedTuple):
    action: Action
    rest: tuple[str, ...] = ()
    torch: Kind | None = None


def parse(arguments: Sequence[str]) -> Wanted:
    rest = list(arguments)
    torch: Kind | None = None
    if rest[:1] == ["--torch"]:
        torch = next((kind for kind in KINDS if rest[1:2] == [kind]), None)
        if torch is None:
            return Wanted("unknown")
        del rest[:2]
    match rest:
        case []:
            return Wanted("start", (), torch)
        case ["--terminal"]:
            return Wanted("terminal", (), torch)
        case ["-h" | "--help", *_]:
            return Wanted("help")
        case ["test" | "stoker" as action, *more]:
            return Wanted("test" if action == "test" else "stoker", tuple(more), torch)
        case _:
            return Wanted("unknown")


def run(root: str, arguments: Sequence[str]) -> int:
    """The exit code. Everything that a person can meet is said in sentences."""
    wanted = parse(arguments)
    if wanted.action in ("help", "unknown"):
        print(USAGE, end="")
        return 0 if wanted.action == "help" else 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may hold letters that this terminal cannot show
        sys.stdout.reconfigure(errors="replace")
    environment = Environment(Path(root))
    try:
        if not environment.is_ready(wanted.action == "test", wanted.torch):
            environment.prepare(wanted.action == "test", wanted.torch)
        build_kernels_once(environment)
        match wanted.action:
            case "test":
                return run_tests(environment, wanted.rest)
            case "stoker":
                return _become(environment, ["-m", "engine", *wanted.rest])
            case _:
                return _start(environment, has_display(sys.platform, os.environ) and wanted.action == "start")
    except SetupError as problem:
        print(f"\n{problem}")
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Start again to go on from here.")
        return 130


def has_display(platform: str, variables: Mapping[str, str]) -> bool:
    if platform in ("win32", "darwin"):
        return True
    return any(variables.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"))


def _start(environment: Environment, with_window: bool) -> int:
    _build_demo_once(environment)
    if not with_window:
        print("Chatting in the terminal: there is no display here, or --terminal was given.")
        return _become(environment, ["-m", "engine", "chat", "--model", "demo"])
    _check_window_once(environment)
    return _become(environment, ["-m", "app"])


def _build_demo_once(environment: Environment) -> None:
    """Not again after a success, even if the model is deleted later: that is the person's choice."""
    done = environment.folder / "demo-built"
    if done.exists():
        return
    print("Building the demo model, once.")
    if subprocess.run([environment.python, "-P", "-m", "engine", "demo"], check=False).returncode == 0:
        done.touch()
    else:
        print("The demo model was not built; the next start tries again.")


def _check_window_once(environment: Environment) -> None:
    """Qt ends the process where a system library is missing, so it is tried in one of its own."""
    done = environment.folder / "window-works"
    if done.exists():
        return
    code = "from PySide6.QtWidgets import QApplication; QApplication([])"
    tried = captured([environment.python, "-I", "-c", code])
    if tried.returncode != 0:
        lines = [line for line in tried.stderr.splitlines() if line.strip()]
        reason = next((line for line in lines if "cannot open shared object" in line or "needed to load" in line), "")
        text = f"The window cannot open here: {reason or (lines[-1] if lines else 'Qt gave no reason')}"
        hint = f"On Debian or Ubuntu: sudo apt install {QT_PACKAGES}"
        raise SetupError(text, f"{hint}\nOr chat in the terminal: python3 installers/start.py --terminal")
    done.touch()


def run_tests(environment: Environment, pytest_arguments: Sequence[str]) -> int:
    """Every check runs, also after a failure. 0 only when all of them pass."""
    # import-linter has no `python -m`, and the script that pip makes for it breaks when the clone is moved.
    lint_imports = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    checks = {
        "ruff check": ["-m", "ruff", "check", "."],
        "ruff format": ["-m", "ruff", "format", "--check", "."],
        "mypy": ["-m", "mypy"],
        "import contracts": ["-c", lint_imports],
        "pytest": ["-m", "pytest", "-n", str(min(os.cpu_count() or 1, _MOST_PROCESSES)), *pytest_arguments],
    }
    failed = []
    for name, arguments in checks.items():
        print(f"\n== {name}", flush=True)
        if subprocess.run([environment.python, *arguments], cwd=environment.root, check=False).returncode != 0:
            failed.append(name)
    print(f"\n== {'all checks passed' if not failed else 'not passed: ' + ', '.join(failed)}", flush=True)
    return 1 if failed else 0


def _become(environment: Environment, arguments: Sequence[str]) -> int:
    """Hand over to the environment's Python. -P: a folder named engine in the current directory is not ours."""
    command = [str(environment.python), "-P", *arguments]
    sys.stdout.flush()
    if os.name != "nt":  # there execv would return to the shell at once
        os.execv(command[0], command)
    return subprocess.run(command, check=False).returncode
