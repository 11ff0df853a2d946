"""A list of values that change as a whole or one by one, for views that show each by a widget of its own."""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from app.core.row import ITEM_ROLE, RowView
from engine.protocol import DownloadJob

_Index = QModelIndex | QPersistentModelIndex


class RowsModel(QAbstractListModel):
    """Rows keep their place where only their contents changed; `key_of` tells them apart."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._items: list[Any] = []

    @property
    def items(self) -> tuple[Any, ...]:
        return tuple(self._items)

    def set_items(self, items: Sequence[Any]) -> None:
        if [key_of(item) for item in items] != [key_of(item) for item in self._items]:
            self.beginResetModel()
            self._items = list(items)
            self.endResetModel()
            return
        for row, item in enumerate(items):
            if item != self._items[row]:
                self._items[row] = item
                self.touch(row)

    def touch(self, row: int) -> None:
        """What belongs to the item, and is not in it, has changed."""
        self.dataChanged.emit(self.index(row), self.index(row))

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._items)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        item = self._items[index.row()]
        if role == ITEM_ROLE:
            return item
        return key_of(item) if role == Qt.ItemDataRole.DisplayRole else None


def key_of(item: RowView | DownloadJob) -> str:
    return item.repo if isinstance(item, DownloadJob) else item.key
