"""The conversation list with its headings Today, Yesterday, Previous 7 days, Earlier: rows over a `ChatStore`.

Headings are rows that cannot be selected. Knows no widget; reads again when told to by `refresh`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import IntEnum
from typing import Any

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt
from PySide6.QtGui import QFont

from app.core.chats import Chat, ChatStore
from app.core.tooltip import plain_tooltip

_Index = QModelIndex | QPersistentModelIndex
_HEADING_PX = 11


class ChatListRole(IntEnum):
    CHAT_ID = Qt.ItemDataRole.UserRole + 1  # None for a heading
    IS_HEADING = Qt.ItemDataRole.UserRole + 2
    IS_WRITING = Qt.ItemDataRole.UserRole + 3  # an answer is being written in it


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    chat: Chat | None = None


def _today() -> date:
    return datetime.now(UTC).astimezone().date()


def section(updated: float, today: date) -> str:
    """The heading under which a chat of that time stands, by the local calendar."""
    age_days = (today - datetime.fromtimestamp(updated, UTC).astimezone().date()).days
    if age_days <= 0:
        return "Today"
    if age_days == 1:
        return "Yesterday"
    return "Previous 7 days" if age_days <= 7 else "Earlier"


class ChatListModel(QAbstractListModel):
    def __init__(self, store: ChatStore, parent: QObject | None = None, *, today: Callable[[], date] = _today) -> None:
        super().__init__(parent)
        self._store, self._today = store, today
        self._search = ""
        self._writing: int | None = None
        self._rows: list[_Row] = []
        self.refresh()

    def set_search(self, text: str) -> None:
        self._search = text
        self.refresh()

    def set_writing(self, chat_id: int | None) -> None:
        """The chat in which an answer is being written."""
        if chat_id == self._writing:
            return
        changed, self._writing = (self._writing, chat_id), chat_id
        for number in changed:
            index = self.index_of(number) if number is not None else QModelIndex()
            if index.isValid():
                self.dataChanged.emit(index, index)

    @property
    def first_chat(self) -> Chat | None:
        return next((row.chat for row in self._rows if row.chat is not None), None)

    def refresh(self) -> None:
        """Read the store again. Where only titles changed the selection of a view survives."""
        rows = self._read()
        before = [row.chat.id if row.chat else row.text for row in self._rows]
        if before != [row.chat.id if row.chat else row.text for row in rows]:
            self.beginResetModel()
            self._rows = rows
            self.endResetModel()
            return
        changed = [number for number, row in enumerate(rows) if row != self._rows[number]]
        self._rows = rows
        for number in changed:
            self.dataChanged.emit(self.index(number), self.index(number))

    def index_of(self, chat_id: int) -> QModelIndex:
        """Invalid where the list does not show that chat."""
        for number, row in enumerate(self._rows):
            if row.chat is not None and row.chat.id == chat_id:
                return self.index(number)
        return QModelIndex()

    def chat_at(self, index: _Index) -> Chat | None:
        return self._rows[index.row()].chat if index.isValid() else None

    def rowCount(self, parent: _Index | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._rows)

    def data(self, index: _Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        if role == Qt.ItemDataRole.DisplayRole:
            return row.text
        if role == ChatListRole.CHAT_ID:
            return row.chat.id if row.chat else None
        if role == ChatListRole.IS_HEADING:
            return row.chat is None
        if role == ChatListRole.IS_WRITING:
            return self._is_writing(row)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{row.text}, writing…" if self._is_writing(row) else row.text
        if role == Qt.ItemDataRole.ToolTipRole and row.chat:
            return plain_tooltip(f"{row.text}\nAn answer is being written here" if self._is_writing(row) else row.text)
        if role == Qt.ItemDataRole.FontRole and row.chat is None:
            font = QFont()
            font.setPixelSize(_HEADING_PX)
            return font
        return None

    def flags(self, index: _Index) -> Qt.ItemFlag:
        is_chat = index.isValid() and self._rows[index.row()].chat is not None
        return super().flags(index) if is_chat else Qt.ItemFlag.NoItemFlags

    def _is_writing(self, row: _Row) -> bool:
        return row.chat is not None and row.chat.id == self._writing

    def _read(self) -> list[_Row]:
        today, heading = self._today(), ""
        rows: list[_Row] = []
        for chat in self._store.search(self._search):
            if (title := section(chat.updated, today)) != heading:
                heading = title
                rows.append(_Row(title))
            rows.append(_Row(chat.title, chat))
        return rows if rows or not self._search.strip() else [_Row("Nothing found")]
