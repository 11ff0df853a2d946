"""Markdown of any length in a scrolling page: as tall as its contents at the width it has. Loads nothing from anywhere."""

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.widgets.answer_pieces import AnswerPieces
from app.widgets.rich_text import MESSAGE_QSS
from app.widgets.theme import Theme


class CardText(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme, self._text = theme, ""
        self._body = QWidget(self)
        self._pieces = self._new_pieces()
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setStyleSheet(MESSAGE_QSS)
        theme.changed.connect(self._dress)

    def set_text(self, text: str) -> None:
        self._text = text
        self._pieces.set_text(text, is_growing=False)
        self._place()

    def sizeHint(self) -> QSize:
        return QSize(400, self._body.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._place()

    def _place(self) -> None:
        height = self._pieces.place(0, 0, self.width())
        self._body.setGeometry(0, 0, self.width(), height)
        self.setFixedHeight(height)

    def _new_pieces(self) -> AnswerPieces:
        palette = self._theme.palette
        return AnswerPieces(self._body, palette, palette.text, self._place)

    def _dress(self) -> None:
        """Pieces keep the colours that they were made with."""
        self._body.deleteLater()
        self._body = QWidget(self)
        self._pieces = self._new_pieces()
        self._body.show()
        self.set_text(self._text)
