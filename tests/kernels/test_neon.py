"""The library cross-compiled for AArch64 and its NEON tier run under qemu, against the portable tier that every test here holds."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from engine.kernels.build import FOLDER, ROOT

_COMPILER, _EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
_SYSROOT = Path("/usr/aarch64-linux-gnu")  # of Debian's cross compiler


@pytest.mark.timeout(900)
def test_neon_agrees_with_portable(tmp_path: Path) -> None:
    if platform.machine().lower() in ("aarch64", "arm64"):
        pytest.skip("this machine has NEON: the other tests of the kernels run it")
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("needs CMake")
    for tool in (_COMPILER, _EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    build, check = tmp_path / "build", tmp_path / "neon_check"
    target = ["-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={_COMPILER}"]
    for command in (
        [cmake, "-S", str(ROOT), "-B", str(build), *target, f"-DSTOKER_OUTPUT={build}/out"],
        [cmake, "--build", str(build), "--target", "stoker_kernels", "--parallel", "2"],
        [
            _COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-static-libstdc++", "-static-libgcc",
            f"-I{FOLDER / 'cpu'}", str(Path(__file__).with_name("neon_check.cpp")), f"{build}/out/stoker_kernels.so",
            f"-Wl,-rpath,{build}/out", "-o", str(check),
        ],
        [_EMULATOR, "-L", str(_SYSROOT), str(check)],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command[0]}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert "all alike" in done.stdout
