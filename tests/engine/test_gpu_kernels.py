"""What is known of a graphics card's side without one: the Triton kernels under Triton's interpreter and compiled for cards that
are not here, and models on a device that is none. Each in a process of its own, as these are chosen once for a process."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: not every system has it")

ROOT = Path(__file__).parents[2]
INTERPRETED = ROOT / "tests/gpu/interpreted"


def test_the_script_for_a_card_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.run_all", "--simulate"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_no_architecture_mixes_devices() -> None:
    pytest.importorskip("transformers", reason="transformers makes the configurations")
    run("-o", "python_files=check_*.py", str(ROOT / "tests/gpu/check_device_neutral.py"))


@needs_triton
@pytest.mark.parametrize("part", sorted(path.name for path in INTERPRETED.glob("check_*.py")))
def test_under_the_interpreter(part: str) -> None:
    run("-o", "python_files=check_*.py", str(INTERPRETED / part), TRITON_INTERPRET="1")


@needs_triton
def test_compiled_for_every_card(tmp_path: Path) -> None:
    run(
        "-o", "python_files=check_*.py", str(ROOT / "tests/gpu/check_compiled.py"),
        TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path),
    )  # fmt: skip


def run(*arguments: str, **environment: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
