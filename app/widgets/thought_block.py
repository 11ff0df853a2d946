"""What a model thought before it answered: one line, folded; the text is laid out only when someone opens it."""

from PySide6.QtCore import QRectF, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QPushButton, QWidget

from app.core.markdown import parse
from app.core.shown_message import thought_label
from app.widgets.palette import Palette
from app.widgets.rich_text import RichText

_HEADER = 24
_LEFT = 14


class ThoughtBlock(QWidget):
    folded = Signal()

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self._palette = palette
        self._text = ""
        self._label = ""
        self._body: RichText | None = None
        self._header = QPushButton(self)
        self._header.setCheckable(True)
        self._header.setProperty("kind", "ghost")
        self._header.setStyleSheet(f"text-align: left; padding: 0 4px; background: transparent; color: {palette.muted};")
        self._header.setToolTip("Show or hide what the model thought first")
        self._header.toggled.connect(self._toggle)

    def set_thought(self, text: str, is_open: bool, seconds: float | None) -> None:
        self._label = thought_label(is_open, seconds, text)
        self._show_label()
        if text != self._text:
            self._text = text
            if self._body is not None:
                self._body.set_blocks(parse(text))

    def _show_label(self) -> None:
        self._header.setText(("▾ " if self._header.isChecked() else "▸ ") + self._label)

    def _toggle(self, is_unfolded: bool) -> None:
        self._show_label()
        if is_unfolded and self._body is None:
            self._body = RichText(self._palette, self._palette.muted, self)
            self._body.setAccessibleName("What the model thought")
            self._body.set_blocks(parse(self._text))
        if self._body is not None:
            self._body.setVisible(is_unfolded)
        self.folded.emit()

    def relayout(self, width: int) -> int:
        self._header.setGeometry(8, 0, self._header.sizeHint().width() + 8, _HEADER)
        if self._body is None or not self._header.isChecked():
            return _HEADER
        height = self._body.height_for(width - _LEFT)
        self._body.setGeometry(_LEFT, _HEADER + 4, width - _LEFT, height)
        return _HEADER + 4 + height

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.fillRect(QRectF(0, 0, 2, self.height()), QColor(self._palette.line))
        painter.end()
