"""Questions to the person in a window of their own, which never shows what looks like HTML as HTML."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QMessageBox, QWidget


def confirm(parent: QWidget, question: str, word: str) -> bool:
    """Whether the person chose `word`; anything else, Escape too, is no."""
    box = QMessageBox(QMessageBox.Icon.Question, "Stoker", question, parent=parent)
    box.setTextFormat(Qt.TextFormat.PlainText)
    yes = box.addButton(word, QMessageBox.ButtonRole.AcceptRole)
    no = box.addButton("Cancel", QMessageBox.ButtonRole.RejectRole)
    box.setDefaultButton(no)
    box.setEscapeButton(no)
    box.exec()
    return box.clickedButton() is yes


def folder(parent: QWidget, title: str) -> str:
    """A folder, or "" when none was chosen."""
    return QFileDialog.getExistingDirectory(parent, title)
