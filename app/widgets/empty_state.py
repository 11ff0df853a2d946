"""What stands where a list would be: why it is empty, and what can be done. Shows values only."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.core.problem import Action

_COLUMN_PX = 460


class EmptyState(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title, self._text = _label("title"), _label("muted")
        self._row = QHBoxLayout()
        self._row.setSpacing(8)
        self._buttons: list[QPushButton] = []
        middle = QWidget(self)
        middle.setMaximumWidth(_COLUMN_PX)
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 56, 0, 40)
        column.setSpacing(8)
        column.addWidget(self._title)
        column.addWidget(self._text)
        column.addSpacing(8)
        column.addLayout(self._row)
        across = QHBoxLayout(self)
        across.setContentsMargins(0, 0, 0, 0)
        across.addStretch(0)
        across.addWidget(middle, 1)
        across.addStretch(0)

    def show_words(self, title: str, text: str = "", actions: Sequence[Action] = ()) -> None:
        self._title.setText(title)
        self._text.setText(text)
        self._text.setVisible(bool(text))
        self.setAccessibleName(f"{title} {text}".strip())
        while self._row.count():
            self._row.takeAt(0)
        for button in self._buttons:
            button.deleteLater()
        self._buttons = [self._button(*action) for action in actions]
        self._row.addStretch(1)
        for button in self._buttons:
            self._row.addWidget(button)
        self._row.addStretch(1)

    @property
    def words(self) -> str:
        return f"{self._title.text()} {self._text.text()}".strip()

    def _button(self, text: str, act: object) -> QPushButton:
        button = QPushButton(text, self)
        button.clicked.connect(act)
        return button


def _label(kind: str) -> QLabel:
    label = QLabel(wordWrap=True, textFormat=Qt.TextFormat.PlainText, alignment=Qt.AlignmentFlag.AlignCenter)
    label.setProperty("kind", kind)
    return label
