"""The engine on this computer: one child process at a time, its lines as typed signals.

Keeps the promises of the protocol whatever the child does: every request is answered, a dead child is named with its
cause, none is left behind. Knows nothing of chats, pages or models beyond the names it passes on.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.backends.child import Child
from engine.protocol import (
    NO_REASONING,
    PROTOCOL_VERSION,
    Cancel,
    ChatMessage,
    Failed,
    Finished,
    Generate,
    Hello,
    ListModels,
    Load,
    Loaded,
    Meter,
    Models,
    Progress,
    ProtocolError,
    Reasoning,
    Sampling,
    Started,
    Text,
    Wishes,
    decode,
    encode,
)

_log = logging.getLogger(__name__)
_HELLO_MS = 120_000  # importing torch from a cold hard disk takes most of a minute
_STOP_MS = 3000
_ENGINE = ("-m", "engine", "host")
_MISMATCH = "The engine is of another version than the window. Install Stoker again, so that both match."

_Request = ListModels | Load | Generate


class EngineState(StrEnum):
    STARTING = "starting"
    IDLE = "idle"  # no model
    LOADING = "loading"
    READY = "ready"
    GENERATING = "generating"
    DEAD = "dead"  # ended without being asked to; `restart` or `load` starts another
    STOPPED = "stopped"  # not started, or asked to stop


class LocalEngine(QObject):
    """Requests return their id at once and may be made in any state; before the child says hello they wait.

    The state has already changed when a signal is emitted.
    """

    hello = Signal(object)
    models = Signal(object)
    progress = Signal(object)
    loaded = Signal(object)
    started = Signal(object)
    text = Signal(object)
    meter = Signal(object)
    finished = Signal(object)
    failed = Signal(object)
    state_changed = Signal(object)  # EngineState
    died = Signal(str, str)  # cause in one sentence, the last lines of stderr

    def __init__(
        self,
        program: str = sys.executable,
        arguments: Sequence[str] = _ENGINE,
        parent: QObject | None = None,
        *,
        hello_ms: int = _HELLO_MS,
        stop_ms: int = _STOP_MS,
    ) -> None:
        super().__init__(parent)
        self._program, self._arguments, self._stop_ms = program, tuple(arguments), stop_ms
        self._child: Child | None = None
        self._state = EngineState.STOPPED
        self._last_id = 0
        self._waiting: list[_Request] = []  # until the child says hello
        self._open: dict[int, _Request] = {}  # sent and not yet answered
        self._wanted: Load | None = None  # the last load asked for
        self._has_greeted = self._has_been_asked_to_load = self._has_model = False  # all of the present child
        self._is_replacing = False
        self._patience = QTimer(self, singleShot=True, interval=hello_ms)
        self._patience.timeout.connect(self._hello_overdue)
        self._signals = {
            Models: self.models, Progress: self.progress, Loaded: self.loaded, Started: self.started, Text: self.text,
            Meter: self.meter, Finished: self.finished, Failed: self.failed,
        }  # fmt: skip

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def last_words(self) -> str:
        """The last lines that the child wrote to stderr."""
        return self._child.last_words if self._child else ""

    # What may be asked of it

    def start(self) -> None:
        """Does nothing while a child is running."""
        if self._state in (EngineState.STOPPED, EngineState.DEAD):
            self._launch()

    def restart(self) -> None:
        """Kill the child, start another and load the last model with the same wishes. Open requests are failed."""
        if self._wanted is not None and not any(isinstance(request, Load) for request in self._waiting):
            self._wanted = replace(self._wanted, request_id=self._next_id())
            self._waiting.insert(0, self._wanted)
        self._replace()

    def stop(self) -> None:
        """The child is gone when this returns; a few seconds at most."""
        self._drop_child(self._stop_ms)
        self._set_state(EngineState.STOPPED)
        self._fail_all("engine.stopped", "The engine was stopped.")

    def list_models(self) -> int:
        return self._request(ListModels(self._next_id()))

    def load(self, model: str, wishes: Wishes) -> int:
        """A child that has been asked for a model before is replaced: one child loads one model."""
        self._wanted = Load(self._next_id(), model, wishes)
        for request in [waiting for waiting in self._waiting if isinstance(waiting, Load)]:
            self._waiting.remove(request)
            self._fail_later(request, "engine.superseded", "Another model was chosen.")
        if self._has_been_asked_to_load or self._state is EngineState.DEAD:
            self._waiting.append(self._wanted)
            self._replace()
            return self._wanted.request_id
        return self._request(self._wanted)

    def generate(self, messages: tuple[ChatMessage, ...], sampling: Sampling, reasoning: Reasoning = NO_REASONING) -> int:
        return self._request(Generate(self._next_id(), messages, sampling, reasoning))

    def cancel(self, request_id: int) -> None:
        """Its `finished` follows. Does nothing for a request that is already answered."""
        if request_id in self._open and self._child is not None:
            self._child.write(encode(Cancel(request_id)))

    # Requests

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _request(self, request: _Request) -> int:
        if self._state is EngineState.DEAD:
            self._fail_later(request, "engine.died", "The engine is not running.")
        elif self._has_greeted:
            self._send(request)
        else:
            self._waiting.append(request)
        return request.request_id

    def _send(self, request: _Request) -> None:
        assert self._child is not None, "a child that greeted is there"
        self._open[request.request_id] = request
        self._has_been_asked_to_load |= isinstance(request, Load)
        self._child.write(encode(request))
        self._set_state(self._settled())

    def _settled(self) -> EngineState:
        """What a child that has said hello is doing."""
        if any(isinstance(request, Load) for request in self._open.values()):
            return EngineState.LOADING
        if any(isinstance(request, Generate) for request in self._open.values()):
            return EngineState.GENERATING
        return EngineState.READY if self._has_model else EngineState.IDLE

    def _fail_later(self, request: _Request, code: str, text: str) -> None:
        """Not before the caller knows the request's id."""
        failed = Failed(request.request_id, code, text)
        QTimer.singleShot(0, self, lambda: self.failed.emit(failed))

    def _fail_all(self, code: str, text: str) -> None:
        unanswered = sorted([*self._open, *(request.request_id for request in self._waiting)])
        self._open.clear()
        self._waiting.clear()
        for request_id in unanswered:
            self.failed.emit(Failed(request_id, code, text))

    def _set_state(self, state: EngineState) -> None:
        if state is not self._state:
            self._state = state
            self.state_changed.emit(state)

    # The child

    def _launch(self) -> None:
        self._child = Child(self._program, self._arguments, self)
        self._child.line.connect(self._receive)
        self._child.ended.connect(self._ended)
        self._forget_child()
        self._set_state(EngineState.STARTING)
        self._patience.start()
        self._child.start()

    def _replace(self) -> None:
        """The next child starts when this one is gone: only then is its memory free."""
        if self._child is None:
            self._launch()
            return
        listings = [request for request in self._open.values() if isinstance(request, ListModels)]
        others = [number for number, request in self._open.items() if not isinstance(request, ListModels)]
        self._waiting[:0] = listings  # the next child can answer those just as well
        self._open.clear()
        self._forget_child()
        self._is_replacing = True
        self._set_state(EngineState.STARTING)
        self._child.kill()
        for request_id in others:
            self.failed.emit(Failed(request_id, "engine.restarted", "The engine was restarted."))

    def _forget_child(self) -> None:
        self._patience.stop()
        self._has_greeted = self._has_been_asked_to_load = self._has_model = False

    def _drop_child(self, grace_ms: int) -> None:
        """Without a word to anyone; it is gone when this returns."""
        child, self._child = self._child, None
        self._forget_child()
        self._is_replacing = False
        if child is not None:
            child.line.disconnect(self._receive)
            child.ended.disconnect(self._ended)
            child.close(grace_ms)
            child.deleteLater()

    def _ended(self, cause: str) -> None:
        assert self._child is not None, "a child that nobody holds has ended"
        last_words = self._child.last_words
        self._child.deleteLater()
        self._child = None
        self._forget_child()
        if self._is_replacing:
            self._is_replacing = False
            self._launch()
        else:
            self._die(cause, last_words)

    def _refuse(self, cause: str) -> None:
        """A child that lives and is of no use."""
        last_words = self.last_words
        self._drop_child(grace_ms=0)
        self._die(cause, last_words)

    def _die(self, cause: str, detail: str) -> None:
        _log.error("engine lost: %s", cause)
        self._set_state(EngineState.DEAD)
        self._fail_all("engine.died", cause)
        self.died.emit(cause, detail)

    def _hello_overdue(self) -> None:
        self._refuse(f"The engine did not answer within {self._patience.interval() / 1000:g} s of its start.")

    # What it says

    def _receive(self, line: bytes) -> None:
        if self._is_replacing:
            return
        try:
            message = decode(line)
        except ProtocolError:
            _log.warning("no message, %d bytes: %s", len(line), _beginning(line))
            if not self._has_greeted and b'"Hello"' in line:
                self._refuse(_MISMATCH)
            return
        if isinstance(message, Hello):
            self._greet(message)
        elif type(message) in self._signals and message.request_id in self._open:
            self._deliver(message)
        else:
            _log.warning("out of place: %s", type(message).__name__)

    def _greet(self, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._refuse(_MISMATCH)
            return
        self._patience.stop()
        self._has_greeted = True
        self._set_state(self._settled())
        self.hello.emit(hello)
        while self._waiting and self._has_greeted:
            self._send(self._waiting.pop(0))

    def _deliver(self, message: Any) -> None:
        if isinstance(message, Models | Loaded | Finished | Failed):
            del self._open[message.request_id]
            self._has_model |= isinstance(message, Loaded)
            self._set_state(self._settled())
        self._signals[type(message)].emit(message)


def _beginning(line: bytes, length: int = 20) -> str:
    """Enough to recognise a stray print by; the rest may be a chat."""
    return "".join(letter for letter in line[: 4 * length].decode(errors="ignore") if letter.isprintable())[:length]
