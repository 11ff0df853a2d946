"""The line below each step: back at the left, what follows at the right. Shows values, knows no step."""

from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.core.problem import Action


@dataclass(frozen=True, slots=True)
class FooterView:
    """`primary` is what most people want next; `others` stand left of it."""

    back: Action | None = None
    hint: str = ""
    others: tuple[Action, ...] = ()
    primary: Action | None = None


class Footer(QWidget):
    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._view = FooterView()
        self._back = QPushButton(self)
        self._back.setProperty("kind", "ghost")
        self._back.clicked.connect(lambda: self._act(self._view.back))
        self._hint = QLabel(self, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._hint.setProperty("kind", "muted")
        self._hint.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._others = [QPushButton(self) for _ in range(2)]
        for number, button in enumerate(self._others):
            button.clicked.connect(lambda _=False, number=number: self._act(self._view.others[number]))
        self._primary = QPushButton(self)
        self._primary.setProperty("kind", "primary")
        self._primary.setMinimumHeight(34)
        self._primary.clicked.connect(lambda: self._act(self._view.primary))
        line = QFrame(self)
        line.setProperty("kind", "divider")
        row = QHBoxLayout()
        row.setContentsMargins(32, 14, 32, 14)
        row.setSpacing(10)
        row.addWidget(self._back)
        row.addWidget(self._hint, 1)
        for button in self._others:
            row.addWidget(button)
        row.addWidget(self._primary)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(line)
        column.addLayout(row)

    @property
    def primary(self) -> QPushButton:
        return self._primary

    @property
    def hint(self) -> str:
        return self._hint.text()

    def show_view(self, view: FooterView) -> None:
        self._view = view
        self._hint.setText(view.hint)
        for button, action in ((self._back, view.back), (self._primary, view.primary), *self._pairs(view)):
            button.setVisible(action is not None)
            if action is not None:
                button.setText(action[0])

    def _pairs(self, view: FooterView) -> list[tuple[QPushButton, Action | None]]:
        actions = [*view.others, *([None] * (len(self._others) - len(view.others)))]
        return list(zip(self._others, actions, strict=True))

    def _act(self, action: Action | None) -> None:
        if action is not None:
            action[1]()
