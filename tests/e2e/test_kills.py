"""`kill -9` of the engine and of the window in mid-answer: at most half a second of text is lost, and both start again."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.host_client import ROOT

DRIVER = ROOT / "tests" / "helpers" / "window_driver.py"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")


@dataclass(frozen=True)
class Window:
    """A running window and what it has received and stored."""

    process: subprocess.Popen[bytes]
    data: Path
    received_log: Path

    def received(self, before: float = float("inf")) -> str:
        return "".join(line["text"] for line in self._lines() if line["time"] <= before)

    def engine_pid(self) -> int:
        return int(self._lines()[-1]["pid"])

    def answer(self) -> tuple[str, str]:
        """Content and state of the last answer in the database."""
        with closing(sqlite3.connect(f"file:{self.data / 'chats.sqlite'}?mode=ro", uri=True)) as database:
            row = database.execute("SELECT content, state FROM messages WHERE role = 'assistant' ORDER BY id DESC").fetchone()
        return (row[0], row[1]) if row else ("", "")

    def until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not in {seconds} s; received {len(self.received())} characters"
            assert self.process.poll() is None, "the window ended"
            time.sleep(0.02)

    def _lines(self) -> list[dict[str, Any]]:
        if not self.received_log.exists():
            return []
        return [json.loads(line) for line in self.received_log.read_text().splitlines() if line.endswith("}")]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "settings.json").write_text(json.dumps({"max_tokens": 20_000}))
    return tmp_path


@contextmanager
def _window(home: Path) -> Iterator[Window]:
    log = home / f"received-{time.time_ns()}.jsonl"
    data = home / "stoker"
    command = [sys.executable, str(DRIVER), str(data), str(log), "Tell me everything"]
    environment = os.environ | {"XDG_DATA_HOME": str(home), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        yield Window(process, data, log)
    finally:
        process.kill()
        process.wait()


def _is_alive(pid: int) -> bool:
    """Also false for a process that has ended but not been waited for."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_killed_engine_keeps_all_text_that_came(home: Path) -> None:
    with _window(home) as window:
        window.until(lambda: len(window.received()) > 300)
        os.kill(window.engine_pid(), signal.SIGKILL)
        window.until(lambda: window.answer()[1] == "interrupted", 10)
        assert window.answer()[0] == window.received()
        assert window.process.poll() is None, "the window lives on"


def test_killed_window_loses_half_a_second_at_most(home: Path) -> None:
    with _window(home) as window:
        window.until(lambda: len(window.received()) > 1500)
        engine, killed_at = window.engine_pid(), time.time()
        window.process.kill()
        window.process.wait()
        content, state = window.answer()
        received = window.received()
        assert state == "streaming"
        assert received.startswith(content)
        assert len(content) >= len(window.received(before=killed_at - 0.5))
        deadline = time.monotonic() + 3
        while _is_alive(engine):
            assert time.monotonic() < deadline, "the engine outlived its window"
            time.sleep(0.02)

    with _window(home) as again:  # the next start marks the answer and works
        again.until(lambda: len(again.received()) > 100)
        with closing(sqlite3.connect(f"file:{home / 'stoker' / 'chats.sqlite'}?mode=ro", uri=True)) as database:
            states = database.execute("SELECT state, content FROM messages WHERE role = 'assistant' ORDER BY id").fetchall()
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert states[0] == ("interrupted", content)
