"""The messages of the open conversation. The last may grow; the view is told at most 15 times a second.

Holds values only: whoever changes one has stored it. Knows no widget and no engine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, Qt, QTimer

from app.core.chats import AnswerStats, MessageState, StoredMessage
from app.core.markdown import split_thought
from app.core.shown_message import ShownMessage

UPDATE_MS = 67  # 15 Hz


class MessagesModel(QAbstractListModel):
    """Item data under `Qt.UserRole` is a `ShownMessage`."""

    def __init__(self, parent: QObject | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(parent)
        self._clock = clock
        self._shown: list[ShownMessage] = []
        self._pending: list[str] = []
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
        self._forget_pending()
        self.beginResetModel()
        self._shown = [ShownMessage(message) for message in messages]
        self.endResetModel()

    def add(self, message: StoredMessage, notice: str = "") -> None:
        self._forget_pending()
        row = len(self._shown)
        self.beginInsertRows(QModelIndex(), row, row)
        self._shown.append(ShownMessage(message, notice=notice))
        self.endInsertRows()

    def remove_from(self, message_id: int) -> None:
        """That message and all after it."""
        row = next((i for i, shown in enumerate(self._shown) if shown.message.id == message_id), None)
        if row is None:
            return
        self._forget_pending()
        self.beginRemoveRows(QModelIndex(), row, len(self._shown) - 1)
        del self._shown[row:]
        self.endRemoveRows()

    # The answer that is being written is always the last message.

    def set_notice(self, notice: str) -> None:
        self._change_last(notice=notice)

    def append_text(self, text: str, stats: AnswerStats) -> None:
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
        return self._shown[-1].message.content + "".join(self._pending)

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
            content = shown.message.content + "".join(self._pending)
            self._pending.clear()
            shown = replace(shown, message=replace(shown.message, content=content))
            self._shown[-1] = self._with_thought_time(shown)

    def _with_thought_time(self, shown: ShownMessage) -> ShownMessage:
        if shown.thought_seconds is not None or "<think>" not in shown.message.content:
            return shown
        if self._thinking_since is None:
            self._thinking_since = self._clock()
        if split_thought(shown.message.content).open:
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
