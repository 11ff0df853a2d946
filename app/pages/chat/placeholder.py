"""What stands in the middle while there is no conversation: a hint, or what is missing and how to get it."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

_COLUMN = 440


class Placeholder(QWidget):
    acted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title = _label("title", self)
        self._text = _label("", self)
        self._command = _label("mono", self)
        self._command.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._note = _label("muted", self)
        self._button = QPushButton(self)
        self._button.clicked.connect(self.acted)
        middle = QWidget(self)
        middle.setMaximumWidth(_COLUMN)
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(10)
        column.addStretch(2)
        for label in (self._title, self._text, self._command, self._note):
            column.addWidget(label)  # without an alignment, which would cut lines off a wrapped text
        column.addWidget(self._button, 0, Qt.AlignmentFlag.AlignHCenter)
        column.addStretch(3)
        row = QHBoxLayout(self)
        row.setContentsMargins(20, 20, 20, 20)
        row.addStretch(1)
        row.addWidget(middle, 100)
        row.addStretch(1)

    def show_text(self, title: str, text: str = "", *, command: str = "", note: str = "", button: str = "") -> None:
        """What is empty is not shown. `acted` follows a click on the button."""
        pairs = ((self._title, title), (self._text, text), (self._command, command), (self._note, note))
        for label, words in pairs:
            label.setText(words)
            label.setVisible(bool(words))
        self._button.setText(button)
        self._button.setVisible(bool(button))


def _label(kind: str, parent: QWidget) -> QLabel:
    label = QLabel(parent)
    label.setTextFormat(Qt.TextFormat.PlainText)
    label.setAlignment(Qt.AlignmentFlag.AlignCenter)
    label.setWordWrap(True)
    if kind:
        label.setProperty("kind", kind)
    return label
