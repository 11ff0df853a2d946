"""The measurement as a child: what it tells reaches the window, and whatever happens to it ends as a sentence."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine import bench_call, scratch
from engine.bench_call import run_bench
from engine.bench_pieces import Stopped
from engine.errors import EngineError
from engine.source import inspect
from engine.store.web import StoppedError

STEP = "import json, sys, time\ndef tell(**told): print(json.dumps(told), flush=True)\ntell(stage='One', done=1, total=3)\n"


def run(code: str, is_stopped: object = None) -> list[tuple[str, int, int]]:
    told: list[tuple[str, int, int]] = []
    stopped = is_stopped if callable(is_stopped) else lambda: False
    run_bench(Path("/nowhere"), lambda *step: told.append(step), stopped, [sys.executable, "-c", STEP + code])
    return told


def test_progress_is_passed_on_and_noise_is_not() -> None:
    code = "print('a library prints this')\nprint('[]')\ntell(stage='Two', done=2, total=3)\ntell(stage='', done=0, total=0, is_over=True)"
    assert run(code) == [("One", 1, 3), ("Two", 2, 3)]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed, perhaps for lack of memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "crashed (SIGILL)"),
        ("sys.exit(3)", "ended with code 3"),
        ("", "ended with code 0"),
    ],
)
def test_a_child_that_ends_early_is_a_sentence(code: str, said: str) -> None:
    with pytest.raises(EngineError) as caught:
        run(code)
    assert said in caught.value.text
    assert caught.value.hint


def test_its_own_refusal_is_passed_on() -> None:
    with pytest.raises(EngineError) as caught:
        run(f"tell(error={json.dumps(['bench.no_space', 'It is full.', 'Free some.'])})")
    assert (caught.value.code, caught.value.text, caught.value.hint) == ("bench.no_space", "It is full.", "Free some.")


def test_a_silent_child_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_call, "_SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(bench_call, "_GRACE_SECONDS", 0.2)
    before = psutil.Process().children()  # other tests' children may still be there
    with pytest.raises(EngineError, match="gave no answer"):
        run("time.sleep(60)")
    assert not set(psutil.Process().children()) - set(before)


def test_a_cancelled_child_is_gone_even_where_it_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_call, "_GRACE_SECONDS", 0.2)
    begun, before = time.monotonic(), psutil.Process().children()
    with pytest.raises(StoppedError):
        run("time.sleep(60)", lambda: time.monotonic() - begun > 0.5)
    assert not set(psutil.Process().children()) - set(before)


def test_a_program_that_cannot_be_started_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="could not be started"):
        run_bench(tmp_path, lambda *_: None, lambda: False, [str(tmp_path / "no-python")])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 128, "moe_intermediate_size": 64, "vocab_size": 512, "num_attention_heads": 2, "head_dim": 64,
             "num_key_value_heads": 1}  # fmt: skip
    monkeypatch.setattr(scratch, "_CONFIG", scratch._CONFIG | sizes)


@pytest.mark.usefixtures("small")
def test_the_scratch_model_is_one_that_loads_and_is_gone_afterwards(tmp_path: Path) -> None:
    left = tmp_path / "stoker-measure-killed"
    left.mkdir()
    with scratch.scratch_model(tmp_path / "not" / "there" / "yet", lambda: False) as folder:
        source = inspect(folder)
        assert (source.footprint.num_experts, source.footprint.top_k) == (24, 8)
        assert folder.parent == tmp_path
        assert not left.exists(), "what a killed measurement left is cleared"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_a_drive_without_room_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "free_bytes", lambda _: 1 << 30)
    with pytest.raises(EngineError, match="has no room") as caught, scratch.scratch_model(tmp_path, lambda: False):
        pass
    assert caught.value.code == "bench.no_space"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small")
def test_stopped_while_it_is_written_it_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped), scratch.scratch_model(tmp_path, lambda: True):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_real_child_notes_rates_where_the_plan_finds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds of measuring, with a scratch file of 0.9 GB."""
    from engine.judge import look_around

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    told: list[int] = []
    run_bench(tmp_path / "hub", lambda stage, done, total: told.append(done), lambda: False)
    ground = look_around(tmp_path / "share" / "stoker", str(tmp_path / "hub"))
    assert ground.notebook is not None
    assert ground.notebook.latest(tmp_path / "hub") is not None
    assert set(ground.notebook.kernels()) >= {"BF16", "FP8", "MXFP4"}
    assert len(told) > 20
    assert list(tmp_path.iterdir()) == [tmp_path / "share"]
