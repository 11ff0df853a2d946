"""A thought or a call of a tool, beside an answer: one line, folded; the text is laid out only while it is unfolded."""

from PySide6.QtCore import QRectF, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.widgets.answer_pieces import AnswerPieces
from app.widgets.palette import Palette

_HEADER = 24
_LEFT = 14


class FoldedBlock(QWidget):
    folded = Signal()

    def __init__(self, palette: Palette, name: str, tip: str, parent: QWidget) -> None:
        """`name` is that of the text, for screen readers."""
        super().__init__(parent)
        self._palette = palette
        self._text = ""
        self._is_growing = False
        self._label = ""
        self._body = QWidget(self)
        self._body.setAccessibleName(name)
        self._body.hide()
        self._pieces = AnswerPieces(self._body, palette, palette.muted, self.folded.emit)
        self._header = QPushButton(self)
        self._header.setCheckable(True)
        self._header.setProperty("kind", "ghost")
        self._header.setStyleSheet(f"text-align: left; padding: 0 4px; background: transparent; color: {palette.muted};")
        self._header.setToolTip(tip)
        self._header.toggled.connect(self._toggle)

    def set_text(self, label: str, text: str, *, is_growing: bool) -> None:
        """Markdown below a line that is plain text."""
        self._label, self._text, self._is_growing = label, text, is_growing
        self._show()

    def _show(self) -> None:
        is_unfolded = self._header.isChecked()
        self._header.setText((("▾ " if is_unfolded else "▸ ") + self._label).replace("&", "&&"))
        if is_unfolded:
            self._pieces.set_text(self._text, self._is_growing)

    def _toggle(self, is_unfolded: bool) -> None:
        self._show()
        self._body.setVisible(is_unfolded)
        self.folded.emit()

    def relayout(self, width: int) -> int:
        self._header.setGeometry(8, 0, self._header.sizeHint().width() + 8, _HEADER)
        if not self._header.isChecked():
            return _HEADER
        height = self._pieces.place(0, 0, width - _LEFT)
        self._body.setGeometry(_LEFT, _HEADER + 4, width - _LEFT, height)
        return _HEADER + 4 + height

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(QRectF(0, 0, 2, self.height()), QColor(self._palette.line))
        painter.end()
