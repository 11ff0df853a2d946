"""The messages of the open conversation. The last may grow; the view is told at most 15 times a second.

Holds values only: whoever changes one has stored it. Knows no widget and no engine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt, QTimer

from app.core.chats import AnswerStats, MessageState, StoredMessage
from app.core.said import Said
from app.core.shown_message import ShownMessage
from engine.protocol import Text

UPDATE_MS = 67  # 15 Hz


class MessagesModel(QAbstractListModel):
    """Item data under `Qt.UserRole` is a `ShownMessage`."""

    def __init__(self, parent: QObject | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parent)
        self._clock = clock
        self._shown: list[ShownMessage] = []
        self._pending: list[Text] = []
        self._said = Said()  # the last message, as far as the view knows it
        self._thinking_since: float | None = None
        self._updates = QTimer(self, interval=UPDATE_MS, singleShot=True)
        self._updates.timeout.connect(self.flush)

    def rowCount(self, parent: QModelIndex | QPersistentModelIndex | None = None) -> int:
        return 0 if parent is not None and parent.isValid() else len(self._shown)

    def data(self, index: QModelIndex | QPersistentModelIndex, role: int = Qt.ItemDataRole.DisplayRole) -> object:
        if not index.isValid():
            return None
        shown = self._shown[index.row()]
        return {
            Qt.ItemDataRole.UserRole: shown,
            Qt.ItemDataRole.DisplayRole: shown.message.content,
            Qt.ItemDataRole.AccessibleTextRole: shown.message.content,
        }.get(Qt.ItemDataRole(role))

    @property
    def messages(self) -> list[StoredMessage]:
        return [shown.message for shown in self._shown]

    def reset(self, messages: Sequence[StoredMessage]) -> None:
        self.beginResetModel()
        self._shown = [ShownMessage(message) for message in messages]
        self._forget_pending()
        self.endResetModel()

    def add(self, message: StoredMessage, notice: str = "") -> None:
        row = len(self._shown)
        self.beginInsertRows(QModelIndex(), row, row)
        self._shown.append(ShownMessage(message, notice=notice))
        self._forget_pending()
        self.endInsertRows()

    def remove_from(self, message_id: int) -> None:
        """That message and all after it."""
        row = next((i for i, shown in enumerate(self._shown) if shown.message.id == message_id), None)
        if row is None:
            return
        self.beginRemoveRows(QModelIndex(), row, len(self._shown) - 1)
        del self._shown[row:]
        self._forget_pending()
        self.endRemoveRows()

    # The answer that is being written is always the last message.

    def set_notice(self, notice: str) -> None:
        self._change_last(notice=notice)

    def append_text(self, text: Text, stats: AnswerStats) -> None:
        self._pending.append(text)
        self._change_last(replace(self._shown[-1].message, stats=stats))

    def finish(self, state: MessageState, stats: AnswerStats | None) -> None:
        """The answer will not grow any more. `stats` None leaves the figures as they are."""
        self._take_pending()
        message = self._shown[-1].message
        self._change_last(replace(message, state=state, stats=stats or message.stats))
        self.flush()

    @property
    def last_content(self) -> str:
        """The answer so far, also what the view has not been told yet."""
        return self._said.plus(self._pending).content

    def flush(self) -> None:
        """Tell the view now."""
        self._updates.stop()
        if self._shown:
            self._take_pending()
            index = self.index(len(self._shown) - 1, 0)
            self.dataChanged.emit(index, index)

    def _take_pending(self) -> None:
        shown = self._shown[-1]
        if self._pending:
            said = self._said = self._said.plus(self._pending)
            self._pending.clear()
            message = replace(shown.message, content=said.content, thought=said.thought, calls=said.calls)
            self._shown[-1] = self._with_thought_time(replace(shown, message=message))

    def _with_thought_time(self, shown: ShownMessage) -> ShownMessage:
        if shown.thought_seconds is not None or not self._said.thought:
            return shown
        if self._thinking_since is None:
            self._thinking_since = self._clock()
        if self._said.is_thinking:
            return shown
        return replace(shown, thought_seconds=self._clock() - self._thinking_since)

    def _change_last(self, message: StoredMessage | None = None, notice: str | None = None) -> None:
        shown = self._shown[-1]
        self._shown[-1] = replace(shown, message=message or shown.message, notice=shown.notice if notice is None else notice)
        if not self._updates.isActive():
            self._updates.start()

    def _forget_pending(self) -> None:
        self._updates.stop()
        self._pending.clear()
        self._thinking_since = None
        last = self._shown[-1].message if self._shown else None
        self._said = Said() if last is None else Said(last.content, last.thought, last.calls)
