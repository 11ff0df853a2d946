"""Asks for an access token of the Hub, says how to get one and where it is kept. Hands it on, and never shows one."""

from collections.abc import Callable

from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QCheckBox, QDialog, QHBoxLayout, QLineEdit, QPushButton, QVBoxLayout, QWidget

from app.widgets.text_label import text_label

_TOKENS = "https://huggingface.co/settings/tokens"
_WIDTH = 460


class TokenDialog(QDialog):
    """`save(token, keep)` returns one sentence on where it is now. `repo` is the one that asks to sign in, if any."""

    def __init__(
        self, save: Callable[[str, bool], str], parent: QWidget | None = None, *, repo: str = "", has_token: bool = False
    ) -> None:
        super().__init__(parent)
        self._save = save
        self.setWindowTitle("Access token")
        self.setFixedWidth(_WIDTH)
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 20)
        column.setSpacing(10)
        column.addWidget(text_label("Sign in to Hugging Face", "title"))
        if repo:
            column.addWidget(text_label(f"1. Accept the terms of {repo} on its page."))
            column.addWidget(self._link("Open its page", f"https://huggingface.co/{repo}"), 0, Qt.AlignmentFlag.AlignLeft)
        number = "2. " if repo else ""
        column.addWidget(text_label(f"{number}Make a token that may read, and paste it here."))
        column.addWidget(self._link("Open the token page", _TOKENS), 0, Qt.AlignmentFlag.AlignLeft)
        self._field = QLineEdit(placeholderText="hf_…", echoMode=QLineEdit.EchoMode.Password)
        self._field.setAccessibleName("Access token")
        self._field.textChanged.connect(self._changed)
        column.addWidget(self._field)
        self._keep = QCheckBox("Keep it for the next time")
        self._keep.setChecked(True)
        column.addWidget(self._keep)
        self._note = text_label("It is sent to Hugging Face alone, and written into no log.", "muted")
        column.addWidget(self._note)
        column.addSpacing(6)
        column.addLayout(self._buttons(has_token))
        self._field.setFocus()

    def _buttons(self, has_token: bool) -> QHBoxLayout:
        self._use = QPushButton("Use this token")
        self._use.setProperty("kind", "primary")
        self._use.setEnabled(False)
        self._use.setDefault(True)
        self._use.clicked.connect(lambda: self._finish(self._field.text().strip()))
        cancel = QPushButton("Cancel")
        cancel.clicked.connect(self.reject)
        row = QHBoxLayout()
        if has_token:
            forget = QPushButton("Forget the present one")
            forget.setAutoDefault(False)
            forget.clicked.connect(lambda: self._finish(""))
            row.addWidget(forget)
        row.addStretch(1)
        row.addWidget(cancel)
        row.addWidget(self._use)
        return row

    def _link(self, text: str, address: str) -> QPushButton:
        button = QPushButton(f"{text} ↗")
        button.setProperty("kind", "chip")
        button.setAutoDefault(False)
        button.setToolTip(address)
        button.clicked.connect(lambda: QDesktopServices.openUrl(QUrl(address)))
        return button

    def _changed(self, text: str) -> None:
        token = text.strip()
        self._use.setEnabled(len(token) > 8 and token.isascii() and " " not in token)

    def _finish(self, token: str) -> None:
        self.said = self._save(token, self._keep.isChecked())
        self.accept()
