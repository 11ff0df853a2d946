"""One line of plain text that is cut with an ellipsis where there is no room; the whole of it is in its tooltip."""

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QStyleOption, QWidget

from app.core.tooltip import plain_tooltip


class ElidedLabel(QLabel):
    def __init__(
        self, kind: str = "", parent: QWidget | None = None, mode: Qt.TextElideMode = Qt.TextElideMode.ElideRight
    ) -> None:
        super().__init__(parent, textFormat=Qt.TextFormat.PlainText)
        self._mode = mode
        self.setProperty("kind", kind)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_words(self, text: str) -> None:
        self.setText(text)
        self._tell_whole()

    def minimumSizeHint(self) -> QSize:
        return QSize(0, super().minimumSizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._tell_whole()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        option = QStyleOption()
        option.initFrom(self)
        text = self.fontMetrics().elidedText(self.text(), self._mode, self.width())
        role = self.foregroundRole()
        self.style().drawItemText(painter, self.rect(), int(self.alignment()), option.palette, self.isEnabled(), text, role)
        painter.end()

    def _tell_whole(self) -> None:
        is_cut = self.fontMetrics().horizontalAdvance(self.text()) > self.width()
        self.setToolTip(plain_tooltip(self.text()) if is_cut else "")
