"""Makes `.venv` in the clone and fills it from the lock. Knows the lock, not what is started afterwards.

A stamp written at the very end says what the environment holds; while it is right, a start skips everything. After an
interruption there is no stamp, and the next start goes on with what is there.
"""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from installers.console import Stage
from installers.lock import pins
from installers.pip_run import pip_install
from installers.problems import DiskFullError, NotFoundError, SetupError, no_venv, not_writable, too_little_space
from installers.processes import captured
from installers.torch_build import TORCH_VERSION, Kind, TorchBuild, attempts, choose, look_around, nvidia_module_is_loaded

# On disk and while downloading, in GB. CPU measured on Linux; CUDA and ROCm from the sizes of their packages, rounded up.
ENVIRONMENT_GB: dict[Kind, float] = {"cpu": 1.8, "cuda": 9.0, "rocm": 18.0}
DOWNLOAD_GB: dict[Kind, float] = {"cpu": 0.6, "cuda": 4.0, "rocm": 6.0}
# Both launchers find the environment beside themselves, so that the clone can be moved.
_SH_LAUNCHER = '#!/bin/sh\nexec "$(dirname "$(readlink -f "$0")")/python" -P -m engine "$@"\n'
_CMD_LAUNCHER = '@"%~dp0python.exe" -P -m engine %*\r\n'
# Relative and plain ASCII: Python 3.11 reads .pth files in the system's encoding, which may not know the clone's path.
_PTH = "import os, sys; sys.path.append(os.path.dirname(sys.prefix))\n"


@dataclass(frozen=True)
class Stamp:
    """What a finished environment holds. `lock` and `test_lock` are SHA-256 of the lock's sections for running and for testing;
    `test_lock` is empty without the test packages."""

    python: str
    lock: str
    test_lock: str
    torch: str
    torch_kind: Kind
    torch_is_a_wish: bool  # asked for with --torch, or all that could be had; a driver found later changes nothing


class Environment:
    """`.venv` of one clone. Nothing is touched before `prepare`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.log = self.folder / "install.log"
        self._lock = root / "installers" / "requirements.lock"
        self.scripts = self.folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.scripts / ("python.exe" if os.name == "nt" else "python")
        self._stamp_file = self.folder / "stoker-stamp.json"
        self._ours = self.folder / "made-by-stoker"

    def is_ready(self, with_tests: bool, wish: Kind | None = None) -> bool:
        """True when the stamp fits the lock, the Python in there and the machine. Takes some 20 ms."""
        stamp = self._read_stamp()
        if stamp is None or stamp.lock != self._hash("run") or stamp.torch != TORCH_VERSION:
            return False
        if with_tests and stamp.test_lock != self._hash("tests"):
            return False
        if wish is not None and wish != stamp.torch_kind:
            return False
        if not stamp.torch_is_a_wish and stamp.torch_kind == "cpu" and nvidia_module_is_loaded():
            return False
        return self._python_version() == stamp.python

    def prepare(self, with_tests: bool, wish: Kind | None = None) -> None:
        """Make or complete the environment. Raises `SetupError`."""
        old = self._read_stamp()
        is_wish = wish is not None or (old is not None and old.torch_is_a_wish)
        if wish is None and is_wish and old is not None:
            build = TorchBuild(old.torch_kind, "as before")
        else:
            build = choose(look_around(), wish)
        print(f"Setting up Stoker in {self.folder}. The first time this takes some minutes and the network.")
        print(f"  Python {sys.version.split()[0]} at {sys.executable}")
        print(f"  torch {TORCH_VERSION}, the {build.kind.upper()} build, {build.reason}")
        try:
            self._stamp_file.unlink(missing_ok=True)
            self._make_folder(build.kind)
            self._install("run", "Packages")
            if with_tests:
                self._install("tests", "Packages for the tests")
            kind = self._install_torch(build)
            self._add_stoker()
            self._check()
            test_lock = self._hash("tests") if with_tests else ""
            stamp = Stamp(
                self._python_version(), self._hash("run"), test_lock, TORCH_VERSION,
                kind, is_wish or kind != build.kind,
            )  # fmt: skip
            self._stamp_file.write_text(json.dumps(asdict(stamp), indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise _from_os(error, self.folder) from error

    def _make_folder(self, kind: Kind) -> None:
        if self.folder.exists() and not self._ours.exists():
            text = f"{self.folder} is there already and was not made by this script."
            raise SetupError(text, "Move it away or delete it, then start again.")
        if self.folder.exists() and self._works():
            return
        if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
            raise no_venv(sys.version_info[:2])
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self._ours.touch()
        _check_free(self.folder, ENVIRONMENT_GB[kind], "Stoker's environment")
        _check_free(Path(tempfile.gettempdir()), DOWNLOAD_GB[kind], "Downloading packages")
        stage = Stage("Environment")
        made = captured([sys.executable, "-m", "venv", self.folder])
        self.log.write_text(made.stdout + made.stderr, encoding="utf-8")
        if made.returncode != 0:
            stage.failed()
            if "ensurepip" in made.stdout + made.stderr:
                raise no_venv(sys.version_info[:2])
            raise SetupError("Python could not make the environment.", f"Its reasons are in {self.log}.")
        stage.done()

    def _works(self) -> bool:
        """True when its Python runs and has pip: a half-made environment is made anew."""
        return self._python_version() != "" and self._run("import pip").returncode == 0

    def _install(self, section: str, title: str) -> None:
        wanted = pins(section, self._lock)
        own_pip = [pin for pin in wanted if pin.startswith("pip==")]
        stage = Stage(f"{title} ({len(wanted)})")
        try:
            for pin in own_pip:
                pip_install(self.python, [pin], 1000, self.log, stage, raw_progress=False)
            pip_install(self.python, ["--no-deps", *wanted], len(wanted), self.log, stage)
        except BaseException:
            stage.failed()
            raise
        stage.done()

    def _install_torch(self, build: TorchBuild) -> Kind:
        """Returns the kind that was installed: the CPU build where no package source has the other one."""
        problem: SetupError | None = None
        kinds: tuple[Kind, ...] = (build.kind,) if build.kind == "cpu" else (build.kind, "cpu")
        for kind in kinds:
            stage = Stage(f"torch {TORCH_VERSION} {kind.upper()}")
            for attempt in attempts(kind, sys.platform):
                needs = () if attempt.with_needs else ("--no-deps",)
                try:
                    pip_install(self.python, [*needs, *attempt.arguments], 16 if attempt.with_needs else 1, self.log, stage)
                except NotFoundError as error:
                    problem = error
                except BaseException:
                    stage.failed()
                    raise
                else:
                    stage.done()
                    return kind
            stage.failed()
            if kind != "cpu":
                print(f"  No package source has torch's {kind.upper()} build; Stoker will use the CPU until you start it with")
                print(f"  --torch {kind} and the network.")
        assert problem is not None
        raise problem

    def _add_stoker(self) -> None:
        """The clone itself on the environment's path, and the command `stoker`; no build step."""
        site = Path(self._run("import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        (site / "stoker.pth").write_text(_PTH, encoding="ascii")
        if os.name == "nt":
            (self.scripts / "stoker.cmd").write_bytes(_CMD_LAUNCHER.encode("ascii"))
            return
        launcher = self.scripts / "stoker"
        launcher.write_text(_SH_LAUNCHER, encoding="ascii")
        launcher.chmod(0o755)

    def _check(self) -> None:
        """A package that does not load is found here and not in the middle of a chat."""
        stage = Stage("Check")
        found = self._run("import torch, numpy, safetensors, tokenizers, PySide6, engine; print(torch.__version__)")
        if found.returncode != 0:
            stage.failed()
            with self.log.open("a", encoding="utf-8") as record:
                record.write(found.stderr)
            reason = found.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise SetupError(f"A package does not load: {reason[0]}", f"Delete {self.folder} and start again. See {self.log}.")
        stage.done(f"torch {found.stdout.strip()}")

    def _run(self, code: str) -> subprocess.CompletedProcess[str]:
        return captured([self.python, "-I", "-c", code])

    def _python_version(self) -> str:
        """'3.11', or '' where the environment's Python does not run. Without site-packages: it must be quick."""
        return captured([self.python, "-I", "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).stdout.strip()

    def _read_stamp(self) -> Stamp | None:
        try:
            return Stamp(**json.loads(self._stamp_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _hash(self, section: str) -> str:
        return hashlib.sha256("\n".join(pins(section, self._lock)).encode()).hexdigest()


def _check_free(folder: Path, needed_gb: float, purpose: str) -> None:
    free_gb = shutil.disk_usage(folder).free / 1e9
    if free_gb < needed_gb:
        raise too_little_space(folder, free_gb, needed_gb, purpose)


def _from_os(error: OSError, folder: Path) -> SetupError:
    if error.errno == errno.ENOSPC:
        return DiskFullError(f"The disk of {folder} is full.", "Free some space and start again.")
    return not_writable(folder.parent, os.strerror(error.errno) if error.errno else str(error))
