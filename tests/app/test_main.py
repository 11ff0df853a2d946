"""The whole program as a process: one window per data folder, a clean end, nothing lost and nobody left behind."""

import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from PySide6.QtWidgets import QApplication, QMessageBox
from pytestqt.qtbot import QtBot

from app.backends.local import EngineState
from app.backends.single_instance import DataFolderError, SingleInstance
from app.core.chats import ChatStore, MessageState
from app.core.paths import Paths, app_paths
from app.core.settings import Settings
from app.main import build, main, run
from tests.app.conftest import FAKE_ENGINE, FAKE_STORE, MakeEngine, MakeStore

ROOT = Path(__file__).parents[2]
HARMLESS = ("This plugin does not support",)  # said by the offscreen platform
Launch = Callable[[Paths], subprocess.Popen[str]]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """The window in a process of its own, with the fake engine."""
    started: list[subprocess.Popen[str]] = []

    def start(paths: Paths) -> subprocess.Popen[str]:
        Settings(paths.settings).has_set_up = True
        code = (
            "import sys\nfrom pathlib import Path\nfrom PySide6.QtWidgets import QApplication\n"
            "from app.backends.local import LocalEngine\nfrom app.backends.store import Store\nfrom app.core.logs import log_files\n"
            "from app.core.paths import app_paths\nfrom app.main import run\n"
            f"paths = app_paths(Path({str(paths.data)!r}))\n"
            "with log_files(paths):\n"
            f"    engine, store = LocalEngine(sys.executable, [{str(FAKE_ENGINE)!r}]), Store(sys.executable, [{str(FAKE_STORE)!r}])\n"
            "    sys.exit(run(QApplication([]), paths, engine, store))"
        )
        started.append(
            subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(what: Callable[[], Any], seconds: float = 15) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := what():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The engine and the download child."""
    wait_for(lambda: len(psutil.Process(process.pid).children()) == 2)
    return list(psutil.Process(process.pid).children())


def is_up(paths: Paths) -> bool:
    return paths.log.exists() and "fake engine: ready" in paths.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly_without_an_orphan(paths: Paths, launch: Launch, number: signal.Signals) -> None:
    process = launch(paths)
    children = children_of(process)
    wait_for(lambda: is_up(paths))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=15)
    assert process.returncode == 0
    assert [line for line in stderr.splitlines() if not line.startswith(HARMLESS)] == []
    assert not any(child.is_running() for child in children)
    assert Settings(paths.settings).window_geometry != ""
    assert "CRITICAL" not in paths.log.read_text()


def test_children_end_when_the_window_is_killed(paths: Paths, launch: Launch) -> None:
    process = launch(paths)
    children = children_of(process)
    wait_for(lambda: is_up(paths))
    process.kill()
    wait_for(lambda: all(not child.is_running() or child.status() == psutil.STATUS_ZOMBIE for child in children))


def test_second_start_exits_and_another_folder_does_not_collide(paths: Paths, tmp_path: Path, launch: Launch) -> None:
    first = launch(paths)
    wait_for(lambda: is_up(paths))
    second = launch(paths)
    said, _ = second.communicate(timeout=15)
    assert (second.returncode, said) == (0, "Stoker is already open; its window has been brought to the front.\n")
    assert first.poll() is None
    other_paths = app_paths(tmp_path / "other")
    other = launch(other_paths)
    wait_for(lambda: is_up(other_paths))
    assert other.poll() is None


def test_first_window_is_raised(qtbot: QtBot, paths: Paths) -> None:
    first = SingleInstance(paths)
    assert first.acquire()
    code = (
        "import sys\nfrom pathlib import Path\nfrom PySide6.QtCore import QCoreApplication\n"
        "from app.core.paths import Paths\nfrom app.backends.single_instance import SingleInstance\n"
        f"app, second = QCoreApplication([]), SingleInstance(Paths(Path({str(paths.data)!r})))\n"
        "sys.exit(0 if not second.acquire() and second.ask_to_raise() else 3)"
    )
    with qtbot.waitSignal(first.raise_wanted, timeout=15_000):
        second = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    qtbot.waitUntil(lambda: second.poll() is not None, timeout=5000)
    assert second.returncode == 0
    first.release()
    third = SingleInstance(paths)
    assert third.acquire()
    third.release()


def test_lock_and_socket_of_a_killed_window_are_taken_over(qtbot: QtBot, paths: Paths) -> None:
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom PySide6.QtCore import QCoreApplication\n"
        "from app.core.paths import Paths\nfrom app.backends.single_instance import SingleInstance\n"
        f"app, first = QCoreApplication([]), SingleInstance(Paths(Path({str(paths.data)!r})))\n"
        "assert first.acquire()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    successor = SingleInstance(paths)
    assert successor.acquire()
    assert not SingleInstance(paths).acquire()
    successor.release()


def test_a_folder_that_takes_no_lock_is_not_taken_for_a_running_window(
    qapp: QApplication, tmp_path: Path, make_engine: MakeEngine, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Paths(tmp_path / "gone")  # a lock cannot be written there, even by root
    with pytest.raises(DataFolderError):
        SingleInstance(gone).acquire()
    said: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: said.append(box.text()))
    assert run(qapp, gone, make_engine(), make_store()) == 1
    assert said == [f"Stoker cannot write to its data folder {gone.data}: the disk is full or the folder is read-only."]


def test_answers_cut_off_by_the_last_session_are_marked(paths: Paths, make_engine: MakeEngine, make_store: MakeStore) -> None:
    chats = ChatStore(paths.chats)
    chat = chats.create()
    chats.add_message(chat.id, "assistant", "half", MessageState.STREAMING)
    chats.close()
    services = build(paths, make_engine(), make_store())
    assert services.chats.messages(chat.id)[0].state is MessageState.INTERRUPTED
    services.chats.close()


def test_theme_follows_its_setting(paths: Paths, make_engine: MakeEngine, make_store: MakeStore) -> None:
    services = build(paths, make_engine(), make_store())
    for mode in ("dark", "light"):
        services.settings.theme = mode
        assert services.theme.mode == mode
        assert services.theme.palette.is_dark is (mode == "dark")
    services.chats.close()


def test_chats_of_a_newer_version_are_left_alone(
    qapp: QApplication, paths: Paths, make_engine: MakeEngine, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = ChatStore(paths.chats)
    chats.close()
    db = sqlite3.connect(paths.chats)
    db.execute("UPDATE schema SET version = 99")
    db.commit()
    db.close()
    said: list[str] = []
    monkeypatch.setattr(QMessageBox, "exec", lambda box: said.append(box.text()))
    engine = make_engine()
    assert run(qapp, paths, engine, make_store()) == 1
    assert "newer version" in said[0]
    assert str(paths.chats) in said[0]
    assert engine.state is EngineState.STOPPED


def test_data_folder_that_cannot_be_made_is_named(qapp: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    monkeypatch.setattr("app.main.QApplication", lambda _: qapp)
    monkeypatch.setattr(QMessageBox, "exec", lambda box: said.append(box.text()))
    assert main(["--data-dir", str(tmp_path / "file" / "data")]) == 1
    assert "data folder" in said[0]


def test_help_names_the_one_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--data-dir" in capsys.readouterr().out
