"""What the bodies of the steps share: a title with a sentence, a card, rows of facts."""

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.core.machine_words import Fact
from app.widgets.column import scrolled
from app.widgets.text_label import text_label

WIDE_PX = 984
_TITLE_PX = 104


def card(spacing: int = 8) -> tuple[QFrame, QVBoxLayout]:
    frame = QFrame()
    frame.setProperty("kind", "card")
    inside = QVBoxLayout(frame)
    inside.setContentsMargins(20, 16, 20, 18)
    inside.setSpacing(spacing)
    return frame, inside


class Body(QWidget):
    """A step: title, sentence, and `content` below them, in a column that scrolls."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title, self.sentence = text_label(kind="page-title"), text_label(kind="muted-body")
        self.content = QVBoxLayout()
        self.content.setSpacing(16)
        column = QVBoxLayout()
        column.setContentsMargins(32, 28, 32, 24)
        column.setSpacing(6)
        column.addWidget(self.title)
        column.addWidget(self.sentence)
        column.addSpacing(10)
        column.addLayout(self.content)
        column.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        self.area = scrolled(column, WIDE_PX + 64, self)
        outer.addWidget(self.area)


class FactRows(QFrame):
    """A card of facts: what it is, what was found, and below that what is wrong with it."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(20, 6, 20, 6)
        self._column.setSpacing(0)
        self._facts: tuple[Fact, ...] = ()

    def show_facts(self, facts: Sequence[Fact]) -> None:
        if tuple(facts) == self._facts:
            return
        self._facts = tuple(facts)
        while (item := self._column.takeAt(0)) is not None:
            if (widget := item.widget()) is not None:
                widget.deleteLater()
        for number, fact in enumerate(self._facts):
            if number:
                divider = QFrame(self)
                divider.setProperty("kind", "divider")
                self._column.addWidget(divider)
            self._column.addWidget(_row(fact, self))


def _row(fact: Fact, parent: QWidget) -> QWidget:
    row = QWidget(parent)
    title = QLabel(fact.title, row, textFormat=Qt.TextFormat.PlainText)
    title.setProperty("kind", "heading")
    title.setFixedWidth(_TITLE_PX)
    title.setAlignment(Qt.AlignmentFlag.AlignTop)
    title.setContentsMargins(0, 1, 0, 0)
    words = QVBoxLayout()
    words.setSpacing(3)
    for text, kind in ((fact.text, "name"), (fact.detail, "muted"), (fact.trouble, "warn")):
        if text:
            label = text_label(text, kind)
            label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
            words.addWidget(label)
    across = QHBoxLayout(row)
    across.setContentsMargins(0, 11, 0, 11)
    across.setSpacing(12)
    across.addWidget(title)
    across.addLayout(words, 1)
    row.setAccessibleName(". ".join(filter(None, (fact.title, fact.text, fact.detail, fact.trouble))))
    return row
