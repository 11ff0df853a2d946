"""Stoker's command line as a process of its own, with a fake hub for the Hub and a folder for the whole computer."""

import os
import subprocess
import sys
from pathlib import Path

from tests.helpers.host_client import ROOT
from tests.hub.server import FakeHub


def environment(hub: FakeHub, home: Path) -> dict[str, str]:
    unwanted = ("HF_TOKEN", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy")
    kept = {name: value for name, value in os.environ.items() if name not in unwanted}
    return kept | {
        "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(home / "hf"), "XDG_DATA_HOME": str(home / "share"),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def start(hub: FakeHub, home: Path, *arguments: str, **options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "engine", *arguments],
        cwd=ROOT, env=environment(hub, home) | options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def run(hub: FakeHub, home: Path, *arguments: str, **options: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    process = start(hub, home, *arguments, **options)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err
