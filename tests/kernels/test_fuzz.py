"""Random shapes, strides, formats and nonsense through the whole C boundary, under address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.kernels.build import ROOT

_SECONDS = 10


@pytest.mark.timeout(600)
def test_sanitized_fuzz(tmp_path: Path) -> None:
    cmake, compiler = shutil.which("cmake"), shutil.which("c++")
    if cmake is None or compiler is None:
        pytest.skip("needs CMake and a C++ compiler")
    probe = tmp_path / "probe.cpp"
    probe.write_text("int main() { return 0; }")
    flags = ["-fsanitize=address,undefined", str(probe), "-o", str(tmp_path / "probe")]
    if subprocess.run([compiler, *flags], capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    build = Path(os.environ.get("STOKER_FUZZ_BUILD", tmp_path / "build"))
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(build), "-DSTOKER_SANITIZE=ON"],
        [cmake, "--build", str(build), "--target", "fuzz_kernels", "--parallel", "2"],
        [str(build / "fuzz_kernels"), str(_SECONDS)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[0]}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "computed" in done.stdout
