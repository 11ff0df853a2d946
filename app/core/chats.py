"""Conversations on disk. Every change is committed when the call returns; nothing waits for the window to close.

Knows neither Qt nor the engine: an answer is text, a state and a few figures.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from app.core.database import Migration, open_database

_MIGRATIONS: tuple[Migration, ...] = (
    (
        """CREATE TABLE chats (
            id INTEGER PRIMARY KEY, title TEXT NOT NULL, created REAL NOT NULL, updated REAL NOT NULL, deleted REAL
        )""",
        """CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT, chat_id INTEGER NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
            role TEXT NOT NULL, content TEXT NOT NULL, state TEXT NOT NULL, stats TEXT, created REAL NOT NULL
        )""",
        "CREATE INDEX messages_by_chat ON messages(chat_id, id)",
    ),
    (
        "ALTER TABLE chats ADD COLUMN reasoning TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE messages ADD COLUMN thought TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE messages ADD COLUMN calls TEXT NOT NULL DEFAULT '[]'",
        """UPDATE messages SET thought = trim(substr(content, 8, instr(content, '</think>') - 8), char(32, 10)),
            content = ltrim(substr(content, instr(content, '</think>') + 8), char(32, 10))
            WHERE role = 'assistant' AND content LIKE '<think>%' AND instr(content, '</think>') > 0""",
        """UPDATE messages SET thought = trim(substr(content, 8), char(32, 10)), content = ''
            WHERE role = 'assistant' AND content LIKE '<think>%'""",
    ),
)
_DELETED_KEPT_SECONDS = 24 * 3600.0  # long enough for undo, then the text is really gone
_REASONS = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "the file may not be written",
    sqlite3.SQLITE_BUSY: "another program is using the file",
    sqlite3.SQLITE_IOERR: "the drive reports an error",
}
_CHAT = "id, title, created, updated, reasoning"
_MESSAGE = "id, chat_id, role, content, state, stats, created, thought, calls"


class NotSavedError(Exception):
    """A change did not reach the disk, nor did any part of it. Its text is the reason: "the disk is full"."""


@contextmanager
def _saving() -> Iterator[None]:
    """SQLite's errors as `NotSavedError`."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise NotSavedError(_REASONS.get(code, str(error))) from error


class MessageState(StrEnum):
    COMPLETE = "complete"
    STREAMING = "streaming"
    INTERRUPTED = "interrupted"  # the program ended while it was streaming
    STOPPED = "stopped"  # by the person
    FAILED = "failed"


_BEGUN = ("assistant", "", MessageState.STREAMING)


@dataclass(frozen=True, slots=True)
class AnswerStats:
    new_tokens: int
    tokens_per_second: float
    first_token_seconds: float
    stop_reason: str
    model: str


@dataclass(frozen=True, slots=True)
class StoredMessage:
    id: int
    chat_id: int
    role: str
    content: str
    state: MessageState
    stats: AnswerStats | None
    created: float  # seconds since 1970
    thought: str = ""  # of an answer, before it
    calls: tuple[str, ...] = ()  # of tools, each with the tool's name in its first line


@dataclass(frozen=True, slots=True)
class Chat:
    id: int
    title: str
    created: float
    updated: float  # when the last message was added
    reasoning: str = ""  # key of what was chosen for it, see `reasoning_words`


class ChatStore:
    """`notice` is one sentence for the person when the file could not be used as it was, else "".

    Whatever changes something raises `NotSavedError` when it cannot.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._drafts: dict[int, Chat] = {}  # created, without a message yet
        self._db, self.notice = open_database(path, _MIGRATIONS)
        self._db.execute("DELETE FROM chats WHERE deleted < ?", (clock() - _DELETED_KEPT_SECONDS,))

    def close(self) -> None:
        self._db.close()

    def chats(self) -> list[Chat]:
        """Newest first."""
        rows = self._db.execute(f"SELECT {_CHAT} FROM chats WHERE deleted IS NULL ORDER BY updated DESC, id")
        return [Chat(*row) for row in rows]

    def search(self, text: str) -> list[Chat]:
        """Chats with `text` in the title or in a message, newest first. Letter case counts only outside ASCII."""
        if not text.strip():
            return self.chats()
        pattern = "%" + text.strip().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self._db.execute(
            f"""SELECT {_CHAT} FROM chats WHERE deleted IS NULL AND (title LIKE ?1 ESCAPE '\\' OR EXISTS (
                SELECT 1 FROM messages WHERE chat_id = chats.id AND content LIKE ?1 ESCAPE '\\'))
                ORDER BY updated DESC, id""",
            (pattern,),
        )
        return [Chat(*row) for row in rows]

    def create(self, title: str = "New chat") -> Chat:
        """Not written, and not among `chats()`, until its first message."""
        now = self._clock()
        # Random, so that two processes never hand out the same one; 53 bits, so that JSON and Qt keep it exact.
        chat = Chat(secrets.randbits(53) or 1, title, now, now)
        self._drafts[chat.id] = chat
        return chat

    @_saving()
    def rename(self, chat_id: int, title: str) -> None:
        if draft := self._drafts.get(chat_id):
            self._drafts[chat_id] = replace(draft, title=title)
        else:
            self._db.execute("UPDATE chats SET title = ? WHERE id = ?", (title, chat_id))

    @_saving()
    def set_reasoning(self, chat_id: int, key: str) -> None:
        if draft := self._drafts.get(chat_id):
            self._drafts[chat_id] = replace(draft, reasoning=key)
        else:
            self._db.execute("UPDATE chats SET reasoning = ? WHERE id = ?", (key, chat_id))

    @_saving()
    def delete(self, chat_id: int) -> None:
        """Hidden until `undelete`; erased a day later, when the file is next opened."""
        self._db.execute("UPDATE chats SET deleted = ? WHERE id = ?", (self._clock(), chat_id))

    @_saving()
    def undelete(self, chat_id: int) -> None:
        self._db.execute("UPDATE chats SET deleted = NULL WHERE id = ?", (chat_id,))

    def messages(self, chat_id: int) -> list[StoredMessage]:
        rows = self._db.execute(f"SELECT {_MESSAGE} FROM messages WHERE chat_id = ? ORDER BY id", (chat_id,))
        return [_message(row) for row in rows]

    def add_message(self, chat_id: int, role: str, content: str, state: MessageState = MessageState.COMPLETE) -> StoredMessage:
        return self._add(chat_id, (role, content, state))[0]

    def add_question(self, chat_id: int, text: str) -> tuple[StoredMessage, StoredMessage]:
        """What a person asks and the answer that begins: both are stored or neither is."""
        question, answer = self._add(chat_id, ("user", text, MessageState.COMPLETE), _BEGUN)
        return question, answer

    @_saving()
    def _add(self, chat_id: int, *messages: tuple[str, str, MessageState]) -> list[StoredMessage]:
        now = self._clock()
        draft = self._drafts.get(chat_id)
        with _transaction(self._db):
            if draft is not None:
                values = (draft.id, draft.title, draft.created, now, draft.reasoning)
                self._db.execute(f"INSERT INTO chats ({_CHAT}) VALUES (?, ?, ?, ?, ?)", values)
            else:
                self._db.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
            added = [self._insert(chat_id, *message, now) for message in messages]
        self._drafts.pop(chat_id, None)
        return added

    def _insert(self, chat_id: int, role: str, content: str, state: MessageState, now: float) -> StoredMessage:
        row = self._db.execute(
            f"INSERT INTO messages (chat_id, role, content, state, created) VALUES (?, ?, ?, ?, ?) RETURNING {_MESSAGE}",
            (chat_id, role, content, state.value, now),
        ).fetchone()
        return _message(row)

    @_saving()
    def update_message(
        self,
        message_id: int,
        *,
        content: str | None = None,
        state: MessageState | None = None,
        stats: AnswerStats | None = None,
        thought: str | None = None,
        calls: Sequence[str] | None = None,
    ) -> None:
        """What is None stays as it is."""
        kept = None if calls is None else json.dumps(calls)
        self._db.execute(
            """UPDATE messages SET content = ifnull(?, content), state = ifnull(?, state), stats = ifnull(?, stats),
                thought = ifnull(?, thought), calls = ifnull(?, calls) WHERE id = ?""",
            (content, state and state.value, stats and json.dumps(asdict(stats)), thought, kept, message_id),
        )

    @_saving()
    def answer_again(self, chat_id: int, message_id: int) -> StoredMessage:
        """The answer that begins in place of that message and all later ones of its chat."""
        now = self._clock()
        with _transaction(self._db):
            self._db.execute("DELETE FROM messages WHERE id >= ? AND chat_id = ?", (message_id, chat_id))
            self._db.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
            return self._insert(chat_id, *_BEGUN, now)

    def interrupt_streaming(self) -> int:
        """At start, when no answer can be running: mark those that the last session left open. Returns how many."""
        return self._db.execute(
            "UPDATE messages SET state = ? WHERE state = ?", (MessageState.INTERRUPTED.value, MessageState.STREAMING.value)
        ).rowcount


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE, so that a second process waits instead of failing half-way."""

    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk has already rolled it back
            db.execute("ROLLBACK")
        raise


def _message(row: tuple[int, int, str, str, str, str | None, float, str, str]) -> StoredMessage:
    number, chat_id, role, content, state, stats, created, thought, calls = row
    return StoredMessage(
        number, chat_id, role, content, MessageState(state), _stats(stats), created, thought, tuple(json.loads(calls))
    )


def _stats(text: str | None) -> AnswerStats | None:
    """Figures of another version are no reason to lose the message."""
    try:
        return AnswerStats(**json.loads(text)) if text else None
    except (ValueError, TypeError):
        return None
