"""Runs pip in the environment: its output goes to the log, its progress to the terminal. Chooses no package."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from installers.console import Stage
from installers.problems import explain_pip

_NEXT = re.compile(r"(?:Collecting|Requirement already satisfied:|Ignoring) ([A-Za-z0-9_.-]+)")
_BYTES = re.compile(r"Progress (\d+) of (\d+)")
_COLLECT_SHARE = 0.7  # of the time, against copying the files into place


class PipProgress:
    """Turns pip's lines into a share from 0 to 1. `expected` is the number of requirements."""

    def __init__(self, expected: int) -> None:
        self._expected = max(expected, 1)
        self._seen = 0
        self.share = 0.0
        self.detail = ""

    def feed(self, line: str) -> None:
        part = 0.0
        if match := _NEXT.match(line):
            self._seen += 1
            self.detail = match[1]
        elif match := _BYTES.match(line):
            part = int(match[1]) / max(int(match[2]), 1)
        elif line.startswith("Installing collected packages"):
            self.share, self.detail = _COLLECT_SHARE, "unpacking"
            return
        else:
            return
        collected = min((max(self._seen - 1, 0) + part) / self._expected, 1.0)
        self.share = max(self.share, _COLLECT_SHARE * collected)


def pip_install(
    python: Path, arguments: Sequence[str], expected: int, log: Path, stage: Stage, raw_progress: bool = True
) -> None:
    """Run `pip install`. The machine's own pip settings (environment, files, package sources) apply. Raises `SetupError`."""
    command = [str(python), "-I", "-u", "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
    # pip learnt `raw` in 24.1; the one that comes with a Python can be older.
    command += ["--progress-bar", "raw" if raw_progress else "off", *arguments]
    # A wish for --user, in the environment or in a settings file, would make pip refuse to install into .venv.
    environment = {**os.environ, "PIP_USER": "0"}
    progress = PipProgress(expected)
    lines: list[str] = []
    with log.open("a", encoding="utf-8") as record:
        record.write(f"$ pip install {' '.join(arguments)}\n")
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, encoding="utf-8", errors="replace",
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                progress.feed(line)
                stage.update(progress.share, progress.detail)
                if not line.startswith("Progress "):
                    lines.append(line)
                    record.write(line)
    if process.returncode != 0:
        raise explain_pip("".join(lines), log)
