"""Tells of what ended while the window was not looked at: a message of the system, or its sign on the task bar."""

from PySide6.QtCore import QObject, QTimer
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import QApplication, QSystemTrayIcon, QWidget

_SHOWN_MS = 10_000


class Notifier(QObject):
    """`window` is what a click brings to the front."""

    def __init__(self, window: QWidget, icon: QIcon) -> None:
        super().__init__(window)
        self._window, self._icon = window, icon
        self._tray: QSystemTrayIcon | None = None  # in the tray only while a message is shown
        self._hide = QTimer(self, singleShot=True, interval=_SHOWN_MS)

    def tell(self, title: str, text: str) -> None:
        if self._window.isActiveWindow():
            return
        QApplication.alert(self._window)
        if not QSystemTrayIcon.isSystemTrayAvailable() or not QSystemTrayIcon.supportsMessages():
            return
        if self._tray is None:
            self._tray = QSystemTrayIcon(self._icon, self)
            self._tray.messageClicked.connect(self._come)
            self._hide.timeout.connect(self._tray.hide)
        self._tray.show()
        self._tray.showMessage(title, text, self._icon, _SHOWN_MS)
        self._hide.start()

    def _come(self) -> None:
        self._window.showNormal() if self._window.isMinimized() else self._window.show()
        self._window.raise_()
        self._window.activateWindow()
