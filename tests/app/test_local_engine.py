"""The engine's child against a fake that speaks the protocol well and badly: every request is answered, none left behind."""

import logging
import os
import signal
import sys
import time
from typing import Any

import psutil
import pytest
from pytestqt.qtbot import QtBot

from app.backends.child import Child
from app.backends.exits import explain_exit
from app.backends.local import EngineState, LocalEngine
from engine.protocol import ChatMessage, Failed, Finished, Loaded, Meter, Models, Progress, Sampling, StopReason, Text, Wishes
from tests.app.conftest import MakeEngine

QUESTION = (ChatMessage("user", "Why is my query slow?"),)
MODEL = "gpt-oss-20b"


class Heard:
    """Everything that an engine emits, in order."""

    def __init__(self, engine: LocalEngine) -> None:
        self.events: list[Any] = []
        self.deaths: list[tuple[str, str]] = []
        self.states: list[EngineState] = []
        for name in ("hello", "models", "progress", "loaded", "started", "text", "meter", "finished", "failed"):
            getattr(engine, name).connect(self.events.append)
        engine.died.connect(lambda cause, detail: self.deaths.append((cause, detail)))
        engine.state_changed.connect(self.states.append)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def answers(self, request_id: int) -> list[Any]:
        kinds = (Models, Loaded, Finished, Failed)
        return [event for event in self.events if isinstance(event, kinds) and event.request_id == request_id]


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)


def ready(qtbot: QtBot, engine: LocalEngine) -> None:
    with qtbot.waitSignal(engine.loaded, timeout=10_000):
        engine.start()
        engine.load(MODEL, Wishes(context=4096))


def test_from_start_to_answer(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("normal", "--rate", "300")
    heard = Heard(engine)
    listing = engine.list_models()  # before the child exists: waits
    loading = engine.load(MODEL, Wishes(expert_ram="30%", context=4096))
    engine.start()
    qtbot.waitUntil(lambda: engine.state is EngineState.READY, timeout=10_000)
    answering = engine.generate(QUESTION, Sampling(max_tokens=60))
    assert engine.state is EngineState.GENERATING
    with qtbot.waitSignal(engine.finished, timeout=10_000):
        pass
    assert heard.states == [
        EngineState.STARTING, EngineState.IDLE, EngineState.LOADING, EngineState.READY, EngineState.GENERATING,
        EngineState.READY,
    ]  # fmt: skip
    assert [len(heard.answers(number)) for number in (listing, loading, answering)] == [1, 1, 1]
    assert heard.of(Loaded)[0].plan.context == 4096
    (finished,) = heard.of(Finished)
    assert (finished.stop_reason, finished.new_tokens) == (StopReason.MAX_TOKENS, 60)
    assert sum(text.tokens for text in heard.of(Text)) == 60
    assert sum(len(meter.records) for meter in heard.of(Meter)) == 61  # and one for the prefill
    assert len([progress for progress in heard.of(Progress) if progress.request_id == loading]) == 5
    assert heard.of(Failed) == heard.deaths == []


def test_cancel_ends_the_answer_and_keeps_the_engine(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("normal", "--rate", "50")
    ready(qtbot, engine)
    with qtbot.waitSignal(engine.text, timeout=5000):
        request_id = engine.generate(QUESTION, Sampling())
    with qtbot.waitSignal(engine.finished, timeout=2000) as blocker:
        engine.cancel(request_id)
    assert blocker.args is not None
    assert blocker.args[0].stop_reason is StopReason.CANCELLED
    assert engine.state is EngineState.READY
    engine.cancel(request_id)  # too late: nothing happens
    with qtbot.waitSignal(engine.text, timeout=5000):
        engine.generate(QUESTION, Sampling())


@pytest.mark.parametrize(
    ("mode", "cause"),
    [("crash", "was killed (signal 9): usually the system ran out of memory"), ("oom", "The engine ran out of memory.")],
)
def test_death_in_mid_answer(qtbot: QtBot, make_engine: MakeEngine, mode: str, cause: str) -> None:
    engine = make_engine(mode, "--after", "10", "--rate", "200")
    heard = Heard(engine)
    ready(qtbot, engine)
    with qtbot.waitSignal(engine.died, timeout=10_000):
        answering = engine.generate(QUESTION, Sampling())
        listing = engine.list_models()
    assert engine.state is EngineState.DEAD
    assert cause in heard.deaths[0][0]
    assert "fake engine" in heard.deaths[0][1]
    assert len(heard.deaths) == 1
    for request_id in (answering, listing):
        (answer,) = heard.answers(request_id)
        assert (answer.code, answer.text) == ("engine.died", heard.deaths[0][0])
    text = "".join(event.text for event in heard.of(Text))
    assert text
    assert "half a li" not in text


def test_killed_from_outside_then_restarted_with_the_same_model_and_wishes(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("normal", "--rate", "50")
    ready(qtbot, engine)
    heard = Heard(engine)
    with qtbot.waitSignal(engine.text, timeout=5000):
        engine.generate(QUESTION, Sampling())
    first_pid = engine.pid
    with qtbot.waitSignal(engine.died, timeout=5000):
        os.kill(first_pid, signal.SIGKILL)
    with qtbot.waitSignal(engine.loaded, timeout=10_000) as blocker:
        engine.restart()
    assert blocker.args is not None
    assert (blocker.args[0].plan.model_name, blocker.args[0].plan.context) == (MODEL, 4096)
    assert engine.pid not in (0, first_pid)
    with qtbot.waitSignal(engine.finished, timeout=10_000):
        engine.generate(QUESTION, Sampling(max_tokens=5))
    assert len(heard.of(Failed)) == 1


def test_restart_of_an_engine_that_hangs(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("hang")
    heard = Heard(engine)
    ready(qtbot, engine)
    with qtbot.waitSignal(engine.started, timeout=5000):
        request_id = engine.generate(QUESTION, Sampling())
    hung = engine.pid
    with qtbot.waitSignal(engine.loaded, timeout=10_000):
        engine.restart()
    assert heard.answers(request_id)[0].code == "engine.restarted"
    assert heard.deaths == []
    assert not is_alive(hung)


def test_another_model_is_another_child_and_the_listing_survives(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("slow")
    heard = Heard(engine)
    ready(qtbot, engine)
    first_pid = engine.pid
    listing = engine.list_models()
    skipped = engine.load("mixtral", Wishes())
    wanted = engine.load("qwen3-30b-a3b", Wishes())
    with qtbot.waitSignal(engine.loaded, timeout=10_000):
        pass
    assert engine.pid not in (0, first_pid)
    assert not is_alive(first_pid)
    assert heard.answers(skipped)[0].code == "engine.superseded"
    assert heard.answers(wanted)[0].plan.model_name == "qwen3-30b-a3b"
    assert isinstance(heard.answers(listing)[0], Models)
    assert heard.deaths == []


def test_failed_load_leaves_the_engine_without_a_model(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("fail-load")
    engine.start()
    with qtbot.waitSignal(engine.failed, timeout=10_000) as blocker:
        engine.load(MODEL, Wishes())
    assert blocker.args is not None
    assert "needs 14.2 GB" in blocker.args[0].text
    assert engine.state is EngineState.IDLE


def test_garbage_is_logged_and_survived(qtbot: QtBot, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine("garbage", "--rate", "300")
    heard = Heard(engine)
    with caplog.at_level(logging.WARNING):
        ready(qtbot, engine)
        with qtbot.waitSignal(engine.finished, timeout=10_000):
            engine.generate(QUESTION, Sampling(max_tokens=60))
    assert "no message" in caplog.text
    assert sum(text.tokens for text in heard.of(Text)) == 60
    assert heard.deaths == []


def test_what_nobody_understands_is_logged_by_its_beginning(qtbot: QtBot, caplog: pytest.LogCaptureFixture) -> None:
    secret = "the chat of a person"
    lines = (
        f"\x1b[31m{'x' * 20}{secret}",
        f'{{"type": "Text", "request_id": 7, "text": "{secret}", "tokens": 1, "total_tokens": 1}}',
    )
    code = f"[print(line, flush=True) for line in {lines!r}]; input()"
    engine = LocalEngine(sys.executable, ("-c", code))
    with caplog.at_level(logging.WARNING):
        engine.start()
        qtbot.waitUntil(lambda: len(caplog.records) == 2, timeout=10_000)
    engine.stop()
    assert secret not in caplog.text
    assert f"no message, {len(lines[0])} bytes: [31m{'x' * 16}" in caplog.text
    assert "out of place: Text" in caplog.text


def test_another_protocol_version_is_refused(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("wrong-version")
    heard = Heard(engine)
    request_id = engine.list_models()
    with qtbot.waitSignal(engine.died, timeout=10_000):
        engine.start()
    assert "another version" in heard.deaths[0][0]
    assert heard.answers(request_id)[0].code == "engine.died"
    assert (engine.state, engine.pid) == (EngineState.DEAD, 0)


def test_no_hello_in_time(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("hang-start", hello_ms=300)
    heard = Heard(engine)
    with qtbot.waitSignal(engine.died, timeout=10_000):
        engine.start()
    assert heard.deaths[0][0] == "The engine did not answer within 0.3 s of its start."


def test_program_that_cannot_start(qtbot: QtBot) -> None:
    engine = LocalEngine("/nonexistent/python", ())
    request_id = engine.list_models()
    heard = Heard(engine)
    engine.start()
    qtbot.waitUntil(lambda: engine.state is EngineState.DEAD, timeout=5000)
    assert heard.deaths[0][0].startswith("The engine could not be started: ")
    assert heard.answers(request_id)[0].code == "engine.died"
    late = engine.generate(QUESTION, Sampling())
    assert heard.answers(late) == []  # not before the caller knows the id
    qtbot.waitUntil(lambda: len(heard.answers(late)) == 1, timeout=2000)
    engine.stop()


@pytest.mark.parametrize("mode", ["normal", "hang"])
def test_stop_leaves_no_orphan(qtbot: QtBot, make_engine: MakeEngine, mode: str) -> None:
    engine = make_engine(mode, "--rate", "20", stop_ms=300)
    heard = Heard(engine)
    ready(qtbot, engine)
    with qtbot.waitSignal(engine.started, timeout=5000):
        request_id = engine.generate(QUESTION, Sampling())
    pid, begun = engine.pid, time.monotonic()
    engine.stop()
    assert not is_alive(pid)
    assert time.monotonic() - begun < 3
    assert engine.state is EngineState.STOPPED
    assert heard.answers(request_id)[0].code == "engine.stopped"
    assert heard.deaths == []
    engine.stop()  # again: nothing happens


def test_stop_while_a_child_is_being_replaced(qtbot: QtBot, make_engine: MakeEngine) -> None:
    engine = make_engine("slow")
    ready(qtbot, engine)
    engine.restart()
    engine.stop()
    qtbot.wait(200)
    assert (engine.state, engine.pid) == (EngineState.STOPPED, 0)


def test_last_words_are_the_last_forty_lines(qtbot: QtBot) -> None:
    code = "import sys; [print(f'line {n}', file=sys.stderr) for n in range(100)]; sys.exit(3)"
    engine = LocalEngine(sys.executable, ("-c", code))
    with qtbot.waitSignal(engine.died, timeout=10_000) as blocker:
        engine.start()
    assert blocker.args is not None
    cause, detail = blocker.args
    assert cause == "The engine stopped with exit code 3."
    assert detail.splitlines() == [f"line {number}" for number in range(60, 100)]
    engine.stop()


def test_only_whole_lines_count(qtbot: QtBot) -> None:
    code = "import sys, time; w = sys.stdout.write; f = sys.stdout.flush\nw('ab'); f(); time.sleep(0.2); w('cd\\r\\nhalf'); f()"
    child = Child(sys.executable, ("-c", code))
    lines: list[bytes] = []
    child.line.connect(lines.append)
    with qtbot.waitSignal(child.ended, timeout=10_000):
        child.start()
    assert lines == [b"abcd"]


def test_child_finds_our_engine_wherever_it_is_started(qtbot: QtBot, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "__init__.py").write_text("raise SystemExit('the wrong engine')")
    monkeypatch.chdir(tmp_path)
    code = "import engine.protocol as p; print(p.encode(p.Hello(p.PROTOCOL_VERSION, '', 1)), flush=True); input()"
    engine = LocalEngine(sys.executable, ("-c", code))
    with qtbot.waitSignal(engine.hello, timeout=10_000):
        engine.start()
    engine.stop()


@pytest.mark.parametrize(
    ("code", "is_crash", "stderr", "expected"),
    [
        (9, True, (), "killed (signal 9)"),
        (137, False, (), "killed (signal 9)"),
        (11, True, (), "crashed (signal 11)"),
        (31, True, (), "crashed (signal 31)"),
        (1, False, ("ModuleNotFoundError: No module named 'torch'",), "package torch is missing"),
        (1, False, ("MemoryError",), "ran out of memory"),
        (-1073741819, True, (), "access violation"),
        (0xC000012D, False, (), "page file"),
        (0, False, (), "ended by itself"),
    ],
)
def test_exits_are_translated(code: int, is_crash: bool, stderr: tuple[str, ...], expected: str) -> None:
    assert expected in explain_exit(code, is_crash, stderr)
