"""The command line as a person or a script meets it: text, JSON, exit codes."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.cli import _ProgressBar, main
from tests.helpers.host_client import ROOT
from tests.helpers.tiny import write_mixtral


class Terminal(io.StringIO):
    """A person who types."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Stoker:
    """Runs commands in this process, with a home of its own: starting Python and torch for each would take minutes."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_DATA_HOME", str(home))
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: str = "", terminal: io.StringIO | None = None) -> Done:
        out, errors = io.StringIO(), io.StringIO()
        self._monkeypatch.setattr("sys.stdin", terminal or io.StringIO(stdin))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(list(arguments))
        return Done(code, out.getvalue(), errors.getvalue())

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        value = json.loads(done.stdout)
        assert isinstance(value, dict)
        return value


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home with space é")
    write_mixtral(home / "stoker" / "models" / "tiny")
    return home


@pytest.fixture
def stoker(home: Path, monkeypatch: pytest.MonkeyPatch) -> Stoker:
    return Stoker(home, monkeypatch)


def test_as_a_process(home: Path) -> None:
    command = [sys.executable, "-m", "engine", "chat", "--model", "tiny", "--greedy", "--max-tokens", "5", "hi"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"XDG_DATA_HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0
    assert "tokens/s" in done.stderr
    assert "per token" in done.stderr


def test_chat_json_holds_a_record_per_token(stoker: Stoker) -> None:
    answer = stoker.json("chat", "--model", "tiny", "--greedy", "--max-tokens", "12", "--expert-ram", "30%", "hi")
    assert set(answer) == {"text", "thought", "calls", "token_ids", "stop_reason", "plan", "traffic"}
    assert (answer["thought"], answer["calls"]) == ("", [])
    assert len(answer["traffic"]) == len(answer["token_ids"]) <= 12
    assert [record["phase"] for record in answer["traffic"]] == ["prefill"] + ["decode"] * (len(answer["token_ids"]) - 1)
    for record in answer["traffic"]:
        assert {"phase", "links", "hits", "misses", "stall_seconds"} <= set(record)
        asked = record["misses"] * answer["plan"]["expert_bytes"]
        assert record["links"].get("disk", {"bytes": 0})["bytes"] == asked + record["unasked_bytes"]
        assert record["links"]["ram"]["origin"] == "derived"


def test_placement_gives_the_same_ids(stoker: Stoker) -> None:
    ids = [
        stoker.json("chat", "--model", "tiny", "--greedy", "--max-tokens", "16", "--expert-ram", budget, "hi")["token_ids"]
        for budget in ("100%", "30%", "25%")
    ]
    assert ids[0] == ids[1] == ids[2]


def test_a_recorded_trace_is_replayed(stoker: Stoker, tmp_path: Path) -> None:
    trace = tmp_path / "trace é.csv"
    done = stoker.json("trace", "record", str(trace), "hello", "and again", "--model", "tiny", "--max-tokens", "6")
    assert trace.exists()
    assert done
    replayed = stoker.json("trace", "replay", str(trace), "--capacity", "50%")
    assert 0 <= replayed["hit_rate"] <= replayed["belady"] <= 1
    assert replayed["bytes"] > 0


def test_a_trace_replaces_no_file(stoker: Stoker, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    done = stoker("trace", "record", str(mine), "hello", "--model", "tiny", "--max-tokens", "6")
    assert done.returncode == 1
    assert "is there already" in done.stderr
    assert mine.read_text() == "mine"
    absent = tmp_path / "absent.csv"
    assert stoker("trace", "record", str(absent), "x" * 100_000, "--model", "tiny").returncode == 1
    assert not absent.exists()


def test_interactive_chat_ends_at_eof(stoker: Stoker) -> None:
    done = stoker("chat", "--model", "tiny", "--greedy", "--max-tokens", "3", terminal=Terminal("one\n\ntwo\n"))
    assert done.returncode == 0
    assert done.stderr.count("tokens/s") == 2


def test_plan_text_and_json(stoker: Stoker) -> None:
    done = stoker("plan", "tiny")
    assert done.returncode == 0
    assert "All 24 experts" in done.stdout
    plan = stoker.json("plan", "tiny", "--expert-ram", "50%")
    assert sum(plan["slots_per_layer"]) == 12
    assert plan["predicted"]["links"]["disk"]["origin"] == "predicted"
    assert plan["predicted_tokens_per_second"][0] > 0


def test_models_are_listed(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [entry["name"] for entry in stoker.json("models")["models"]] == ["tiny"]
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    done = stoker("models")
    assert done.returncode == 0
    assert "stoker demo" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("chat", "--model", "nowhere", "hi"), "model.not_found"),
        (("chat", "--model", "tiny", "--expert-ram", "1KB", "hi"), "plan.below_floor"),
        (("chat", "--model", "tiny", "--expert-ram", "much", "hi"), "units.unreadable"),
        (("chat", "--model", "tiny", "--context", "99999", "hi"), "plan.context"),
        (("chat", "--model", "tiny", "--context", "32", "x" * 400), "prompt.too_long"),
        (("chat", "--model", "tiny", "--top-p", "7", "hi"), "sampling.range"),
        (("chat", "--model", "tiny", "--reasoning-effort", "high", "hi"), "reasoning.effort"),
        (("chat", "--model", "tiny", "--thinking", "off", "hi"), "reasoning.switch"),
        (("chat", "--model", "tiny"), "cli.prompt"),
        (("chat", "--model", "tiny", ""), "cli.prompt"),
        (("chat", "--model", "tiny", "--temperature", "nan", "hi"), "sampling.range"),
        (("chat", "--model", "tiny", "--seed", str(2**70), "hi"), "sampling.range"),
        (("chat", "--model", "~nosuchuser/x", "hi"), "model.not_found"),
        (("chat", "--model", "x" * 300, "hi"), "model.not_found"),
        (("plan", "tiny", "--model", "tiny"), "cli.model"),
        (("plan", "."), "model.not_found"),
        (("plan", "nowhere"), "model.not_found"),
        (("demo", "--experts", "0"), "demo.experts"),
    ],
)
def test_errors_are_a_sentence_and_a_step(stoker: Stoker, arguments: tuple[str, ...], code: str) -> None:
    done = stoker(*arguments, "--json")
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert error["text"]
    assert error["hint"]
    if arguments != ("chat", "--model", "tiny"):
        plain = stoker(*arguments)
        assert plain.returncode == 1
        assert plain.stdout == ""
        assert plain.stderr.startswith("stoker: ")
        assert "Traceback" not in plain.stderr


def test_a_piped_question_is_answered_once(stoker: Stoker) -> None:
    done = stoker("chat", "--model", "tiny", "--greedy", "--max-tokens", "3", stdin="hi\n")
    assert done.returncode == 0
    assert done.stderr.count("tokens/s") == 1
    assert ">" not in done.stdout[:1]


def test_without_a_display_the_window_says_so(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    done = stoker()
    assert done.returncode == 1
    assert "no display" in done.stderr


def test_a_bar_tells_bytes_as_bytes_and_parts_as_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    bar = _ProgressBar("Making", False)
    for done, total in ((0, 0), (12, 35), (600_000_000, 1_000_000_000)):
        monkeypatch.setattr(bar, "_shown_at", 0.0)
        bar.show(done, total)
    lines = terminal.getvalue().replace("\x1b[K", "").split("\r")
    assert lines[1:] == ["Making", "Making  34%", "Making  60% of 1.00 GB"]


@pytest.mark.parametrize("option", ["--expert-ram", "--vram-limit"])
def test_a_bench_without_a_simulated_card_takes_no_limits_for_one(stoker: Stoker, option: str) -> None:
    done = stoker("bench", "tiny", option, "3GB")
    assert done.returncode == 1
    assert f"{option} is for a simulated card." in done.stderr
