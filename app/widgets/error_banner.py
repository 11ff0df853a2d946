"""A banner for what went wrong: one sentence, what can be done, the details on demand. Knows no cause and no remedy.

A quiet one tells what is good to know: no warning sign, muted words.
"""

from collections.abc import Callable, Sequence

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPlainTextEdit,
    QPushButton,
    QSizePolicy,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.core.problem import Action
from app.widgets.icons import pixmap
from app.widgets.theme import Theme, mono_font

_DETAIL_HEIGHT = 120


class ErrorBanner(QWidget):
    """Hidden until `show_problem`; a new problem takes the place of the old one."""

    closed = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None, *, is_quiet: bool = False) -> None:
        super().__init__(parent)
        self._theme = theme
        self._card = QFrame(self)
        self._card.setProperty("kind", "card")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self._icon = QLabel(self._card)
        self._icon.setHidden(is_quiet)
        self._sentence = QLabel(self._card, wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        self._sentence.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        if is_quiet:
            self._sentence.setProperty("kind", "muted")
        self._fold = QPushButton("Details", self._card)
        self._fold.setCheckable(True)
        self._fold.setProperty("kind", "ghost")
        self._close = QToolButton(self._card)
        self._close.setToolTip("Close")
        self._close.setAccessibleName("Close this message")
        self._close.setIconSize(QSize(16, 16))
        self._close.setProperty("kind", "ghost")
        self._detail = QPlainTextEdit(self._card, readOnly=True)
        self._detail.setAccessibleName("Details")
        self._detail.setFont(mono_font(11))
        self._detail.setFixedHeight(_DETAIL_HEIGHT)
        self._buttons: list[QPushButton] = []
        self._lay_out()
        self._fold.toggled.connect(self._detail.setVisible)
        self._close.clicked.connect(self.dismiss)
        theme.changed.connect(self._paint_icons)
        self._paint_icons()
        self.hide()

    @property
    def sentence(self) -> str:
        return self._sentence.text()

    def show_problem(self, sentence: str, detail: str = "", actions: Sequence[Action] = ()) -> None:
        """The first action is the one to take. A click on any closes the banner first."""
        for button in self._buttons:
            self._row.removeWidget(button)
            button.deleteLater()
        self._buttons = [self._button(*action) for action in actions]
        for place, button in enumerate(self._buttons, start=self._row.indexOf(self._fold) + 1):
            self._row.insertWidget(place, button)
        self._sentence.setText(sentence)
        self.setAccessibleName(sentence)
        self._detail.setPlainText(detail)
        self._fold.setChecked(False)
        self._detail.hide()
        self._fold.setVisible(bool(detail))
        self.show()

    def dismiss(self) -> None:
        self.hide()
        self.closed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        else:
            super().keyPressEvent(event)

    def _button(self, text: str, act: Callable[[], object]) -> QPushButton:
        def run() -> None:
            self.dismiss()
            act()

        button = QPushButton(text, self._card)
        button.clicked.connect(run)
        return button

    def _lay_out(self) -> None:
        self._row = QHBoxLayout()
        self._row.setSpacing(8)
        self._row.addWidget(self._icon)
        self._row.addWidget(self._sentence, 1)
        self._row.addWidget(self._fold)
        self._row.addWidget(self._close)
        column = QVBoxLayout(self._card)
        column.setContentsMargins(12, 8, 8, 8)
        column.addLayout(self._row)
        column.addWidget(self._detail)
        around = QVBoxLayout(self)
        around.setContentsMargins(12, 8, 12, 8)
        around.addWidget(self._card)

    def _paint_icons(self) -> None:
        palette = self._theme.palette
        self._icon.setPixmap(pixmap("warning", palette.bad, 20, self.devicePixelRatioF()))
        self._close.setIcon(self._theme.icon("close", palette.muted, 16))
