"""A label of plain text that wraps, in one of the style sheet's kinds."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel


def text_label(text: str = "", kind: str = "") -> QLabel:
    label = QLabel(text, wordWrap=True, textFormat=Qt.TextFormat.PlainText)
    label.setProperty("kind", kind)
    return label
