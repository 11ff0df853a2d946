"""One window per data folder: the first keeps a lock and listens, a second asks it to come to the front.

Knows no window: it says `raise_wanted` and whoever has one raises it.
"""

import hashlib
import time

from PySide6.QtCore import QLockFile, QObject, Signal
from PySide6.QtNetwork import QLocalServer, QLocalSocket

from app.core.paths import Paths

_ANSWER_MS = 2000


class DataFolderError(Exception):
    """The lock cannot be written, so nothing else can. Its text is for the person."""


class SingleInstance(QObject):
    raise_wanted = Signal()

    def __init__(self, paths: Paths, parent: QObject | None = None) -> None:
        super().__init__(parent)
        # The folder is in the name, so that another folder is another program.
        self._name = "stoker-" + hashlib.sha256(str(paths.data.resolve()).encode()).hexdigest()[:16]
        self._folder = paths.data
        self._lock = QLockFile(str(paths.lock))
        self._lock.setStaleLockTime(0)  # a lock is stale when its process is gone, not after a time
        self._server = QLocalServer(self)
        self._server.setSocketOptions(QLocalServer.SocketOption.UserAccessOption)
        self._server.newConnection.connect(self._greet)

    def acquire(self) -> bool:
        """Whether this process is the first. The lock decides, so a socket left by a crash is safe to remove.

        Raises `DataFolderError` where there can be no lock.
        """
        if not self._lock.tryLock(0):
            if self._lock.error() is not QLockFile.LockError.LockFailedError:
                raise DataFolderError(
                    f"Stoker cannot write to its data folder {self._folder}: the disk is full or the folder is read-only."
                )
            return False
        QLocalServer.removeServer(self._name)
        self._server.listen(self._name)
        return True

    def ask_to_raise(self) -> bool:
        """Whether the first process heard. It may be just starting, so it is asked for up to two seconds."""
        deadline = time.monotonic() + _ANSWER_MS / 1000
        while time.monotonic() < deadline:
            socket = QLocalSocket()
            socket.connectToServer(self._name)
            if socket.waitForConnected(200):
                heard = socket.bytesAvailable() > 0 or socket.waitForReadyRead(_ANSWER_MS)
                socket.disconnectFromServer()
                return heard
            time.sleep(0.05)
        return False

    def release(self) -> None:
        self._server.close()
        self._lock.unlock()

    def _greet(self) -> None:
        """To connect is to ask."""
        while (socket := self._server.nextPendingConnection()) is not None:
            socket.disconnected.connect(socket.deleteLater)
            socket.write(b"ok\n")
            socket.flush()
            self.raise_wanted.emit()
