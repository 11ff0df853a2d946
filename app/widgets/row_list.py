"""A card of rows, one widget for each item of a list model; widgets are kept and filled anew. Knows no kind of row."""

from collections.abc import Callable
from typing import Any, Protocol

from PySide6.QtCore import QAbstractListModel, QModelIndex, Qt
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from app.core.row import ITEM_ROLE


class Row(Protocol):
    def show_item(self, item: Any) -> None:
        """Also called when what belongs to the item has changed."""


class RowList(QFrame):
    """Hidden while there are no rows. Up and Down move the keyboard from row to row."""

    def __init__(
        self, model: QAbstractListModel, make_row: Callable[[QWidget], QWidget], parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self._model, self._make_row = model, make_row
        self._rows: list[QWidget] = []
        self._dividers: list[QFrame] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(1, 1, 1, 1)
        self._column.setSpacing(0)
        model.modelReset.connect(self._rebuild)
        model.dataChanged.connect(self._refill)
        self._rebuild()

    @property
    def rows(self) -> tuple[QWidget, ...]:
        return tuple(self._rows[: self._model.rowCount()])

    def refill(self) -> None:
        """All of them: the colours have changed."""
        for number in range(self._model.rowCount()):
            self._fill(number)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()), 0)
        focused = next((number for number, row in enumerate(self.rows) if row.hasFocus() or _holds_focus(row)), -1)
        if step and focused >= 0 and 0 <= focused + step < len(self.rows):
            self._rows[focused + step].setFocus(Qt.FocusReason.TabFocusReason)
        else:
            super().keyPressEvent(event)

    def _rebuild(self) -> None:
        count = self._model.rowCount()
        while len(self._rows) < count:
            if self._rows:
                divider = QFrame(self)
                divider.setProperty("kind", "divider")
                self._dividers.append(divider)
                self._column.addWidget(divider)
            self._rows.append(self._make_row(self))
            self._column.addWidget(self._rows[-1])
        for number in range(count):
            self._fill(number)
        for number, row in enumerate(self._rows):
            row.setVisible(number < count)
        for number, divider in enumerate(self._dividers):
            divider.setVisible(number + 1 < count)
        self.setVisible(count > 0)

    def _refill(self, first: QModelIndex, last: QModelIndex) -> None:
        for number in range(first.row(), last.row() + 1):
            self._fill(number)

    def _fill(self, number: int) -> None:
        row: Any = self._rows[number]
        row.show_item(self._model.data(self._model.index(number), ITEM_ROLE))


def _holds_focus(row: QWidget) -> bool:
    focused = row.window().focusWidget()
    return focused is not None and row.isAncestorOf(focused)
