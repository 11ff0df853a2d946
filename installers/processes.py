"""Runs a short command and keeps what it says."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def captured(command: Sequence[str | Path], variables: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`variables` are added to the environment. A command that cannot be started counts as failed, with the reason as its
    error output."""
    environment = None if variables is None else {**os.environ, **variables}
    try:
        return subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environment,
            check=False,
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
