"""Runs a short command and keeps what it says."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


def captured(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """A command that cannot be started counts as failed, with the reason as its error output."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
