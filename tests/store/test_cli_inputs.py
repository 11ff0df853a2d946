"""What the command line is given and cannot use: one sentence with the range or the way on, and a code that scripts see."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cli import main
from engine.config import Wishes
from engine.hardware.machine import Gpu, GpuKind, Machine
from engine.plan.forecast import Knowledge, forecast
from engine.plan_cli import plan_rows
from engine.protocol import DownloadState
from engine.store.jobs import Jobs
from engine.units import GB
from tests.helpers.host_client import ROOT
from tests.helpers.rates import CARD, QWEN3_30B, RATES
from tests.helpers.tiny import write_mixtral


@pytest.fixture
def at_home(computer: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its models folder holds one model, called tiny."""
    monkeypatch.setenv("XDG_DATA_HOME", str(computer / "data"))
    monkeypatch.setattr("engine.store.library.user_data_path", lambda *_, **__: computer / "data" / "stoker")
    models = computer / "data" / "stoker" / "models"
    models.mkdir(parents=True)
    write_mixtral(models / "tiny", torch.bfloat16)
    return models


def _error(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    assert main([*arguments, "--json"]) == 1
    found: dict[str, str] = json.loads(capsys.readouterr().out)["error"]
    assert found["text"].endswith(".")
    return found


@pytest.mark.parametrize(
    "arguments", [("--ram", "0"), ("--ram=-5GB",), ("--ram", "1" + "0" * 30), ("--vram", "0"), ("--vram", "1e9")]
)
def test_memory_that_no_computer_has_is_refused_with_the_range(
    at_home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    found = _error(capsys, "plan", "tiny", *arguments)
    assert "100 MB to 1000 TB" in found["hint"]


def test_supposed_memory_is_another_plan_of_the_same_computer(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.bench.SECONDS", 0.02)
    assert main(["plan", "tiny"]) == 0
    monkeypatch.setattr("engine.bench.measure", lambda *_, **__: pytest.fail("it is measured already"))
    assert main(["plan", "tiny", "--ram", "900TB"]) == 0
    assert len(json.loads((at_home.parent / "rates.json").read_text())["machines"]) == 1


_PLAN, _CHAT, _TRACE = (
    ("plan", "tiny"),
    ("chat", "--model", "tiny", "Why?"),
    ("trace", "record", "t", "--model", "tiny", "Why?"),
)
_SIMULATE = ("bench", "tiny", "--simulate", "1GB")


@pytest.mark.parametrize("verb", [_PLAN, _CHAT, _TRACE, _SIMULATE])
@pytest.mark.parametrize("option", ["--expert-ram", "--vram-limit"])
def test_amounts_that_cannot_be_read_are_refused_before_anything_is_looked_at(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...], option: str
) -> None:
    monkeypatch.setattr("engine.plan_cli.probe_all", lambda *_: pytest.fail("it looked around"))
    monkeypatch.setattr("engine.engine.inspect", lambda *_: pytest.fail("it was opened"))
    monkeypatch.setattr("engine.simulate_cli.inspect", lambda *_: pytest.fail("it was opened"))
    found = _error(capsys, *verb, f"{option}=12gi")
    assert "12gi" in found["text"]
    assert "Write 3GB" in found["hint"]


def test_a_limit_on_graphics_memory_is_planned_refused_and_priced(
    at_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.bench.SECONDS", 0.02)

    def plan(*more: str) -> dict[str, Any]:
        assert main(["plan", "tiny", "--vram", "8GB", "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    whole, none, half = plan(), plan("--vram-limit", "0"), plan("--vram-limit", "50%")
    assert sum(whole["card_slots"]) == 3 * 8
    assert none["card_slots"] == []
    assert any("no graphics memory may be taken" in note for note in none["notes"])
    (room,) = [tier["room"] for tier in half["tiers"] if tier["link"] == "vram"]
    assert room == sum(tier["room"] for tier in whole["tiers"] if tier["link"] == "vram") // 2
    refused = _error(capsys, "plan", "tiny", "--vram", "8GB", "--vram-limit", "1KB")
    assert "1KB of graphics memory is too little" in refused["text"]


def test_a_plan_tells_in_words_what_each_choice_costs() -> None:
    machine = Machine(64 * GB, 64 * GB, False, gpus=(Gpu("Card 9000", GpuKind.NVIDIA, vram_free=12 * GB),))
    plan = forecast(machine, QWEN3_30B, Wishes(vram_limit="6GB"), Knowledge(RATES, "", CARD, ""))
    told = [text for label, text in plan_rows(plan) if label == "Instead"]
    assert len(told) == len(plan.prices)
    (none,) = [text for text in told if text.startswith("no graphics card: ")]
    assert re.fullmatch(r"no graphics card: 5\.99 GB less, \d+\.\d–\d+\.\d tokens/s", none)
    assert any(re.match(r"6\.59 GB of graphics memory: \d+ MB more, ", text) for text in told)


def test_names_that_nobody_has(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "tiny" in _error(capsys, "rm", "nosuch")["hint"]
    assert "tiny" in _error(capsys, "models", "--verify", "nosuch")["hint"]
    found = _error(capsys, "plan", "nosuch")
    assert "tiny" in found["hint"]
    assert "maker/model" in found["hint"]
    assert "did not bring" in _error(capsys, "rm", "tiny")["text"]
    assert "is empty" in _error(capsys, "plan", "")["text"]


def test_a_file_in_place_of_a_folder(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = at_home / "tiny" / "model.safetensors"
    for verb in ("plan", "rm", "bench"):
        found = _error(capsys, verb, str(file))
        assert "is a file" in found["text"]
        assert str(file.parent) in found["hint"]


def test_a_folder_that_is_not_there_is_not_probed(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nosuch is not there" in _error(capsys, "probe", str(at_home / "nosuch"))["text"]
    assert "is no folder" in _error(capsys, "probe", str(at_home / "tiny" / "config.json"))["text"]


def test_one_action_at_a_time(at_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _error(capsys, "models", "--add", str(at_home), "--forget", str(at_home))
    assert "--add and --forget" in found["text"]


@pytest.mark.parametrize("limit", ["0", "0.001KB", ""])
def test_a_rate_at_which_nothing_comes_is_refused(at_home: Path, capsys: pytest.CaptureFixture[str], limit: str) -> None:
    _error(capsys, "pull", "maker/model", "--limit", limit)


def test_a_download_under_way_is_not_led_elsewhere_in_silence(
    at_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(at_home.parent)
    jobs.add("maker/model", "main", "")
    jobs.update("maker/model", lambda job: replace(job, state=DownloadState.PAUSED, done_bytes=5, total_bytes=9))
    for other in (("--folder", str(tmp_path)), ("--revision", "old")):
        found = _error(capsys, "pull", "maker/model", *other)
        assert "main into the Hugging Face cache" in found["text"]
        assert "--cancel" in found["hint"]
    pasted = "https://huggingface.co/maker/model"
    assert "is under way" in _error(capsys, "pull", pasted, "--revision", "old")["text"]
    assert main(["pull", pasted, "--cancel", "delete", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"downloads": []}
    assert "not among the downloads" in _error(capsys, "pull", "maker/model", "--cancel", "keep")["text"]
    assert "Name it" in _error(capsys, "pull", "--cancel", "keep")["hint"]


def test_an_empty_folder_is_added_and_said_to_be_empty(
    at_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["models", "--add", str(empty), "--json"]) == 0
    assert f"no model in {empty} yet" in capsys.readouterr().err
    assert main(["models", "--add", str(at_home), "--json"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT to one process")
def test_without_a_network_a_download_says_what_it_waits_for(at_home: Path, tmp_path: Path) -> None:
    """Nobody looks on: a line for each thing that it waits for, and an end."""
    environment = {
        "HF_ENDPOINT": "http://127.0.0.1:9", "XDG_DATA_HOME": str(tmp_path / "none"), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin",
    }  # fmt: skip
    running = subprocess.Popen(
        [sys.executable, "-m", "engine", "pull", "maker/model"], cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    )
    assert running.stderr is not None
    first = running.stderr.readline()
    assert "maker/model" in first
    assert "cannot be reached" in first
    assert "asked again" in first
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=30)[1].count("\n") <= 6
    assert running.returncode != 0


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT to one process")
@pytest.mark.parametrize(("verb", "what"), [("bench", "measurement"), ("plan", "plan")])
def test_ctrl_c_says_that_nothing_was_kept(at_home: Path, tmp_path: Path, verb: str, what: str) -> None:
    home = at_home.parents[1]
    environment = {"XDG_DATA_HOME": str(home), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    running = subprocess.Popen(
        [sys.executable, "-m", "engine", verb, "tiny"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not _has_torch(running.pid):
        time.sleep(0.05)
        assert running.poll() is None, running.communicate()
    time.sleep(1.0)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=30)
    # CPython ends by the signal itself where the interrupt fell into text that `exec` runs, as imports of dataclasses do.
    assert running.returncode in (130, -signal.SIGINT)
    assert out == ""
    assert err == f"stoker: The {what} was ended; nothing of it was kept.\n"
    assert not (home / "stoker" / "rates.json").exists()


def _has_torch(pid: int) -> bool:
    """It has got as far as importing what measures."""
    maps = Path(f"/proc/{pid}/maps")
    return not maps.exists() or "libtorch_cpu" in maps.read_text()
