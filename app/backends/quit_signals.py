"""SIGINT and SIGTERM as a Qt signal. Python runs no handler while Qt waits, so the bytes of `set_wakeup_fd` wake it."""

import signal
import socket

from PySide6.QtCore import QObject, QSocketNotifier, Signal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class QuitSignals(QObject):
    """From the main thread only. `release` puts back what was there."""

    wanted = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._before = {number: signal.signal(number, lambda *_: None) for number in _SIGNALS}
        self._fd_before = signal.set_wakeup_fd(self._sender.fileno())
        self._notifier = QSocketNotifier(self._receiver.fileno(), QSocketNotifier.Type.Read, self)
        self._notifier.activated.connect(self._woken)

    def release(self) -> None:
        self._notifier.setEnabled(False)
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._receiver.close()
        self._sender.close()

    def _woken(self) -> None:
        if any(number in _SIGNALS for number in self._receiver.recv(64)):
            self.wanted.emit()
