"""How much the model thinks in this chat: a chip with a menu of what the loaded model takes. Hidden where it takes nothing."""

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from app.core.reasoning_words import Choice


class ReasoningChip(QPushButton):
    chosen = Signal(str)  # key of a choice

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "chip")
        self.setToolTip("How much the model thinks before it answers in this chat")
        self._shown: tuple[tuple[Choice, ...], Choice | None] | None = None
        self._menu = QMenu(self)
        self.setMenu(self._menu)
        self.hide()

    def show_choices(self, choices: Sequence[Choice], current: Choice | None) -> None:
        shown = (tuple(choices), current)
        if shown == self._shown:
            return  # the menu must not be rebuilt under the pointer
        self._shown = shown
        self._menu.clear()
        for choice in choices:
            action = self._menu.addAction(choice.words.replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(choice == current)
            action.triggered.connect(lambda _, key=choice.key: self.chosen.emit(key))
        words = current.words if current is not None else ""
        self.setText(f"Reasoning: {words} ▾".replace("&", "&&"))
        self.setAccessibleName(f"Reasoning: {words}")
        self.setVisible(bool(choices))
