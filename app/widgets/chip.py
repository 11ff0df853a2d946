"""A verdict or state as a pill: a coloured dot and words, so that the colour never stands alone. Values only."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.widgets.theme import Theme, ui_font

_HEIGHT, _PAD, _DOT, _GAP = 24, 10, 8, 6


class Chip(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme, self._text, self._color = theme, "", "muted"
        self.setFont(ui_font(12))
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def set_words(self, text: str, color: str) -> None:
        """`color` is the name of a palette's colour. Nothing is drawn for an empty text."""
        self._text, self._color = text, color
        self.setAccessibleName(text)
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        width = QFontMetricsF(ui_font(12)).horizontalAdvance(self._text) + 2 * _PAD + _DOT + _GAP
        return QSize(round(width) + 1 if self._text else 0, _HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        if not self._text:
            return
        palette = self._theme.palette
        color = QColor(getattr(palette, self._color))
        width = min(self.width(), self.sizeHint().width())
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.raised))
        painter.drawRoundedRect(QRectF(0, (self.height() - _HEIGHT) / 2, width, _HEIGHT), _HEIGHT / 2, _HEIGHT / 2)
        painter.setBrush(color)
        painter.drawEllipse(QRectF(_PAD, (self.height() - _DOT) / 2, _DOT, _DOT))
        painter.setPen(color)
        painter.setFont(ui_font(12))
        left = _PAD + _DOT + _GAP
        room = QRectF(left, 0, width - left - _PAD + 4, self.height())
        text = QFontMetricsF(painter.font()).elidedText(self._text, Qt.TextElideMode.ElideRight, room.width())
        painter.drawText(room, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft, text)
        painter.end()
