"""Downloads, library and Hub on this computer: the child `python -m engine download`, started when it is first needed.

Every question is answered once, through the callbacks given with it. A child that dies fails what is open, and the next
question starts another. Knows no page and no queue.
"""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from app.backends.child import Child
from engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Card,
    DownloadProgress,
    Downloads,
    Failed,
    Hello,
    HubModels,
    MachineFacts,
    MachineRates,
    Message,
    Models,
    Progress,
    ProtocolError,
    Removed,
    RepoPlan,
    decode,
    encode,
)

_log = logging.getLogger(__name__)
_CHILD = ("-m", "engine", "download")
_STOP_MS = 6000
_CLOSING = (Models, Downloads, Removed, HubModels, RepoPlan, Card, MachineFacts, MachineRates)


def _ignore(_: Any) -> None:
    pass


@dataclass(frozen=True, slots=True)
class _Question:
    done: Callable[[Any], object]
    failed: Callable[[Failed], object]
    step: Callable[[Any], object]


class Store(QObject):
    models = Signal(object)  # Models: whenever the library is told, whoever asked
    downloads = Signal(object)  # Downloads: the same of the queue
    progressed = Signal(object)  # DownloadProgress
    died = Signal(str)  # the cause in one sentence; what was open has failed before

    def __init__(self, program: str = sys.executable, arguments: Sequence[str] = _CHILD, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._program, self._arguments = program, tuple(arguments)
        self._child: Child | None = None
        self._has_greeted = self._is_stopped = False
        self._last_id = 0
        self._open: dict[int, _Question] = {}
        self._waiting: list[str] = []  # lines, until the child says hello

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    def ask(
        self,
        make: Callable[..., Message],
        *fields: Any,
        done: Callable[[Any], object] = _ignore,
        failed: Callable[[Failed], object] = _ignore,
        step: Callable[[Any], object] = _ignore,
    ) -> int:
        """Send `make(request_id, *fields)`; exactly one of `done` and `failed` is called, never before this returns."""
        self._last_id += 1
        request_id = self._last_id
        self._open[request_id] = _Question(done, failed, step)
        if self._is_stopped:
            QTimer.singleShot(0, self, lambda: self._fail(request_id, "engine.stopped", "Stoker is closing."))
            return request_id
        self._launch()
        self._say(encode(make(request_id, *fields)))
        return request_id

    def cancel(self, request_id: int) -> None:
        """Its answer follows. Does nothing for one that is answered."""
        if request_id in self._open:
            self._say(encode(Cancel(request_id)))

    def forget(self, request_id: int) -> None:
        """Cancel it, and nobody is told of its answer."""
        self.cancel(request_id)
        if request_id in self._open:
            self._open[request_id] = _Question(_ignore, _ignore, _ignore)

    def stop(self) -> None:
        """The child is gone when this returns; what has arrived stays on the disk."""
        self._is_stopped = True
        child, self._child = self._child, None
        if child is not None:
            child.line.disconnect(self._receive)
            child.ended.disconnect(self._ended)
            child.close(_STOP_MS)
            child.deleteLater()
        self._open.clear()

    def _launch(self) -> None:
        if self._child is None:
            self._has_greeted = False
            self._child = Child(self._program, self._arguments, self)
            self._child.line.connect(self._receive)
            self._child.ended.connect(self._ended)
            self._child.start()

    def _say(self, line: str) -> None:
        if self._has_greeted and self._child is not None:
            self._child.write(line)
        else:
            self._waiting.append(line)

    def _receive(self, line: bytes) -> None:
        try:
            message = decode(line)
        except ProtocolError:
            _log.warning("no message, %d bytes", len(line))
            return
        if isinstance(message, Hello):
            self._greet(message)
        elif isinstance(message, DownloadProgress | Progress):
            self._advance(message)
        elif isinstance(message, Failed):
            self._fail(message.request_id, message.code, message.text, message.hint)
        elif isinstance(message, _CLOSING):
            self._answer(message)
        else:
            _log.warning("out of place: %s", type(message).__name__)

    def _greet(self, hello: Hello) -> None:
        if hello.protocol_version != PROTOCOL_VERSION:
            self._end("The downloader is of another version than the window. Install Stoker again, so that both match.")
            return
        self._has_greeted = True
        waiting, self._waiting = self._waiting, []
        for line in waiting:
            self._say(line)

    def _advance(self, message: DownloadProgress | Progress) -> None:
        question = self._open.get(message.request_id)
        if isinstance(message, DownloadProgress):
            self.progressed.emit(message)
        if question is not None:
            question.step(message)

    def _answer(self, message: Any) -> None:
        question = self._open.pop(message.request_id, None)
        if isinstance(message, Models):
            self.models.emit(message)
        if isinstance(message, Downloads):
            self.downloads.emit(message)
        if question is not None:
            question.done(message)

    def _fail(self, request_id: int, code: str, text: str, hint: str = "") -> None:
        question = self._open.pop(request_id, None)
        if question is not None:
            question.failed(Failed(request_id, code, text, hint))

    def _ended(self, cause: str) -> None:
        _log.error("downloader lost: %s", cause)
        self._end(cause.replace("The engine", "The downloader", 1))

    def _end(self, cause: str) -> None:
        child, self._child = self._child, None
        self._has_greeted = False
        self._waiting.clear()
        if child is not None:
            child.line.disconnect(self._receive)
            child.ended.disconnect(self._ended)
            child.close(0)
            child.deleteLater()
        for request_id in sorted(self._open):
            self._fail(request_id, "engine.died", cause)
        self.died.emit(cause)
