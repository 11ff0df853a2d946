"""Children that hang, crash or talk nonsense; the real ones on this machine; torch's side with stand-ins for its runtime."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.hardware.child import ask_child, run_child
from engine.hardware.wheel import read_wheel, version_file


def _run(code: str, limit_seconds: float = 60.0) -> Any:
    return run_child([sys.executable, "-c", code], limit_seconds)


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = f"import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(file)!r}, 'w').write(str(os.getpid()))"
    reply = _run(f"{code}; time.sleep(600)", 3.0)
    assert reply.facts == {}
    assert reply.fault == "gave no answer in 3 s and was ended"
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_a_child_that_crashes_is_a_fact() -> None:
    code = "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.SIGSEGV)"
    assert _run(code).fault == f"crashed ({signal.SIGSEGV.name})"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('no such driver')", "ended with code 1 (RuntimeError: no such driver)"),
        ("print('{')", "answered with something else"),
        ("print('[1]')", "answered with something else"),
        ("", "answered with something else"),
    ],
)
def test_a_child_that_talks_nonsense(code: str, words: str) -> None:
    assert words in _run(code).fault


def test_a_program_that_is_absent(tmp_path: Path) -> None:
    assert "could not be started" in run_child([str(tmp_path / "nothing")], 5.0).fault


def test_what_a_driver_prints_does_not_spoil_the_answer() -> None:
    code = "import os\nfrom engine.hardware.child import answer\nanswer(lambda: (os.write(1, b'noise'), print('noise'), {'a': 1})[-1])"
    command = [sys.executable, "-c", f"import sys; sys.path.append({str(Path(__file__).parents[2])!r})\n{code}"]
    assert run_child(command, 60.0).facts == {"a": 1}


def test_the_real_nvml_child_answers() -> None:
    reply = ask_child("nvml")
    assert not reply.fault
    assert "fault" in reply.facts or reply.facts["devices"] is not None


@pytest.mark.slow
def test_the_real_torch_child_answers() -> None:
    pytest.importorskip("torch")
    reply = ask_child("torch_child")
    assert not reply.fault
    assert reply.facts["devices"] or reply.facts["fault"]


def test_the_wheel_is_read_without_importing_it() -> None:
    torch = pytest.importorskip("torch")
    wheel = read_wheel(version_file())
    assert wheel.version == torch.version.__version__
    assert (wheel.cuda, wheel.hip) == (torch.version.cuda or "", torch.version.hip or "")


class Runtime:
    """cudart with a limit, as WSL has one."""

    def __init__(self, most: int) -> None:
        self._most, self.held = most, dict[int, int]()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if sum(self.held.values()) + nbytes > self._most:
            return 2  # cudaErrorMemoryAllocation
        self.held[address] = nbytes
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        del self.held[address]
        return 0


CHUNK = 256 << 20


@pytest.mark.parametrize(
    ("most", "limit", "expected"),
    [
        (2 * CHUNK + 5, 8 * CHUNK, (2 * CHUNK, "refused", True)),
        (8 * CHUNK, 2 * CHUNK, (2 * CHUNK, "limit", True)),
        (0, 8 * CHUNK, (0, "refused", False)),
    ],
)
def test_memory_is_registered_until_it_is_refused(most: int, limit: int, expected: tuple[int, str, bool]) -> None:
    torch = pytest.importorskip("torch")
    from engine.hardware.torch_child import pin

    runtime = Runtime(most)
    found = pin(runtime, torch, "cpu", limit)
    assert (found["bytes"], found["stop"], found["is_right"]) == expected
    assert runtime.held == {}


def test_a_copy_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from engine.hardware import torch_child

    idle = SimpleNamespace(
        uint8=torch.uint8,
        frombuffer=lambda *args, **options: _Idle(torch.frombuffer(*args, **options)),
    )
    assert torch_child.pin(Runtime(CHUNK), idle, "cuda:0", CHUNK)["is_right"] is False


class _Idle:
    """A tensor whose copy to the card leaves the card's memory as it was."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def to(self, device: str, *, copy: bool) -> Any:
        return self._tensor.new_zeros(self._tensor.shape)

    def data_ptr(self) -> int:
        return int(self._tensor.data_ptr())
