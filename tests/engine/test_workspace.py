"""What a prompt takes beside weights, experts and cache stays within what was planned, however long the context."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.tiny import kernels_named
from tests.perf.shapes import SHAPES
from tests.perf.synthetic import make

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process forget its own peak")
_ROOT = Path(__file__).parents[2]
_CHILD = """
import sys
from pathlib import Path
import torch
from engine.config import KvType
from tests.helpers.tiny import kernels_named, session_on

def memory(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key + ":"))

folder, kernels, context = Path(sys.argv[1]), kernels_named(sys.argv[2]), int(sys.argv[3])
with session_on(folder, kernels=kernels, context=context, kv_type=KvType(sys.argv[4]), prefill_chunk=512) as (session, plan):
    tokens = torch.randint(0, 1000, (context,)).tolist()
    session.sync(tokens[:1024])  # every expert is in memory now
    before, kv = memory("VmRSS"), session._parts.kv
    Path("/proc/self/clear_refs").write_text("5")
    session.sync(tokens)
    grown = (context - 1024) * plan.kv_bytes // context
    print(memory("VmHWM") - before - grown, plan.workspace_bytes)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("workspace") / "model", SHAPES["qwen3-30b-a3b"].small(), "bf16", 2)


@pytest.mark.parametrize(("kernels", "kv_type"), [("native", "bf16"), ("reference", "q8")])
def test_a_prompt_of_16k_tokens_stays_within_its_workspace(kernels: str, kv_type: str, folder: Path) -> None:
    kernels_named(kernels)  # or skip
    command = [sys.executable, "-c", _CHILD, str(folder), kernels, "16384", kv_type]
    done = subprocess.run(
        command, cwd=_ROOT, env=os.environ | {"PYTHONPATH": str(_ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    taken, planned = map(int, done.stdout.split())
    print(f"{kernels} {kv_type}: {taken / 1e6:.0f} of {planned / 1e6:.0f} MB")
    assert taken <= planned, f"{taken / 1e6:.0f} MB of {planned / 1e6:.0f} MB"
