"""One child process that speaks in lines: its stdout as whole lines, its last words on stderr, how it ended.

Knows nothing of the protocol. A child is used once; another one is another object.
"""

import logging
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

from app.backends.exits import explain_exit

_log = logging.getLogger("stoker.engine")
_SITE_ROOT = Path(__file__).parents[2]  # where `engine` and `app` lie side by side
_STDERR_LINES = 40


class Child(QObject):
    line = Signal(bytes)  # without its newline
    ended = Signal(str)  # the cause in one sentence; emitted exactly once, whatever happened

    def __init__(self, program: str, arguments: Sequence[str], parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._has_ended = False
        self._process = QProcess(self)
        self._process.setProgram(program)
        self._process.setArguments(list(arguments))
        self._process.setProcessEnvironment(_environment())
        self._process.readyReadStandardOutput.connect(self._read_lines)
        self._process.readyReadStandardError.connect(self._read_stderr)
        self._process.finished.connect(self._finished)
        self._process.errorOccurred.connect(self._failed)

    @property
    def last_words(self) -> str:
        return "\n".join(self._stderr)

    @property
    def pid(self) -> int:
        """0 before it runs and after it ended."""
        return self._process.processId()

    def start(self) -> None:
        self._process.start()

    def write(self, line: str) -> None:
        """Lost when the child is gone; `ended` tells."""
        if self._process.state() != QProcess.ProcessState.NotRunning:
            self._process.write(line.encode() + b"\n")

    def kill(self) -> None:
        self._process.kill()

    def close(self, grace_ms: int) -> None:
        """Close stdin, at which an engine ends by itself; kill it after `grace_ms`. It is gone when this returns."""
        if self._process.state() == QProcess.ProcessState.NotRunning:
            return
        self._process.closeWriteChannel()
        if not self._process.waitForFinished(grace_ms):
            _log.warning("the engine did not end within %d ms and is killed", grace_ms)
            self._process.kill()
            self._process.waitForFinished(5000)

    def _read_lines(self) -> None:
        # What follows the last newline is no message: it is either not all there yet or never will be.
        while self._process.canReadLine():
            self.line.emit(bytes(self._process.readLine().data()).rstrip(b"\r\n"))

    def _read_stderr(self) -> None:
        text = bytes(self._process.readAllStandardError().data()).decode("utf-8", errors="replace")
        for line in text.replace("\r", "\n").split("\n"):
            if line.strip():
                self._stderr.append(line.rstrip())
                _log.info("%s", line.rstrip())

    def _finished(self, code: int, status: QProcess.ExitStatus) -> None:
        self._read_lines()
        self._read_stderr()
        self._end(explain_exit(code, status == QProcess.ExitStatus.CrashExit, tuple(self._stderr)))

    def _failed(self, error: QProcess.ProcessError) -> None:
        """Only a start that failed ends without `finished`."""
        if error == QProcess.ProcessError.FailedToStart:
            self._end(f"The engine could not be started: {self._process.errorString()}.")

    def _end(self, cause: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.ended.emit(cause)


def _environment() -> QProcessEnvironment:
    """`engine` is found next to `app`, and never in whatever folder the window was started from."""
    environment = QProcessEnvironment.systemEnvironment()
    paths = [str(_SITE_ROOT), *filter(None, [environment.value("PYTHONPATH")])]
    environment.insert("PYTHONPATH", os.pathsep.join(paths))
    environment.insert("PYTHONSAFEPATH", "1")
    environment.insert("PYTHONUTF8", "1")
    return environment
