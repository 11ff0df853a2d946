"""The chat store: nothing is lost by a crash, a second process, an old schema or a corrupt file."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier

import pytest

from app.core.chats import AnswerStats, ChatStore, MessageState, NotSavedError
from app.core.database import DatabaseTooNewError, open_database
from tests.app.conftest import empty_disk, fill_disk

Reopen = Callable[..., ChatStore]
STATS = AnswerStats(167, 18.4, 0.9, "end", "gpt-oss-20b")


class Clock:
    def __init__(self) -> None:
        self.now = 1_764_600_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.sqlite"


@pytest.fixture
def reopen(path: Path) -> Iterator[Reopen]:
    """Another `ChatStore` on the same file; all are closed after the test."""
    with ExitStack() as stack:
        yield lambda clock=None: stack.enter_context(closing(ChatStore(path, clock or Clock())))


@pytest.fixture
def store(reopen: Reopen) -> ChatStore:
    return reopen()


def chat_with(store: ChatStore, title: str, *contents: str) -> int:
    chat = store.create(title)
    for content in contents:
        store.add_message(chat.id, "user", content)
    return chat.id


def test_thoughts_calls_and_the_chosen_reasoning_are_kept(store: ChatStore, reopen: Reopen) -> None:
    chat = store.create("Draft")
    store.set_reasoning(chat.id, "high")
    _, answer = store.add_question(chat.id, "Why?")
    store.update_message(answer.id, thought="Hm.", calls=["look\n{}", "see"], content="So.")
    store.update_message(answer.id, content="So it is.")
    again = reopen()
    assert again.chats()[0].reasoning == "high"
    kept = again.messages(chat.id)[-1]
    assert (kept.thought, kept.content, kept.calls) == ("Hm.", "So it is.", ("look\n{}", "see"))
    again.set_reasoning(chat.id, "low")
    assert store.chats()[0].reasoning == "low"


def test_thoughts_that_an_earlier_version_kept_in_the_text_are_taken_out(path: Path, reopen: Reopen) -> None:
    from app.core.chats import _MIGRATIONS

    old, _ = open_database(path, _MIGRATIONS[:1])
    old.execute("INSERT INTO chats VALUES (1, 'Old', 0, 1e10, NULL)")
    texts = ["<think>\nHm.\n</think>\n\nSo.", "<think>cut off", "a <think> in the midst", "plain"]
    for text in texts:
        old.execute(
            "INSERT INTO messages (chat_id, role, content, state, created) VALUES (1, 'assistant', ?, 'complete', 0)", (text,)
        )
    old.execute(
        "INSERT INTO messages (chat_id, role, content, state, created) VALUES (1, 'user', '<think>mine</think>', 'complete', 0)"
    )
    old.close()
    kept = [(message.thought, message.content) for message in reopen().messages(1)]
    assert kept == [("Hm.", "So."), ("cut off", ""), ("", texts[2]), ("", "plain"), ("", "<think>mine</think>")]


def test_empty_chat_is_not_written_until_its_first_message(store: ChatStore, reopen: Reopen) -> None:
    chat = store.create()
    store.rename(chat.id, "Renamed before it was written")
    assert store.chats() == []
    assert store.messages(chat.id) == []
    store.add_message(chat.id, "user", "hello")
    assert [(item.id, item.title) for item in reopen().chats()] == [(chat.id, "Renamed before it was written")]


def test_newest_first_and_a_new_message_moves_a_chat_up(store: ChatStore) -> None:
    first, second = chat_with(store, "first", "a"), chat_with(store, "second", "b")
    assert [chat.id for chat in store.chats()] == [second, first]
    store.rename(first, "renamed")
    assert [chat.id for chat in store.chats()] == [second, first]
    store.add_message(first, "user", "c")
    assert [chat.id for chat in store.chats()] == [first, second]


def test_update_changes_only_what_is_given(store: ChatStore) -> None:
    chat = store.create()
    answer = store.add_message(chat.id, "assistant", "", MessageState.STREAMING)
    store.update_message(answer.id, content="Half an ans")
    store.update_message(answer.id, stats=STATS)
    store.update_message(answer.id, state=MessageState.STOPPED)
    (read,) = store.messages(chat.id)
    assert (read.content, read.state, read.stats) == ("Half an ans", MessageState.STOPPED, STATS)
    store.update_message(answer.id, content="")
    assert store.messages(chat.id)[0].content == ""


def test_figures_of_another_version_do_not_lose_the_message(store: ChatStore, path: Path) -> None:
    chat = store.create()
    store.add_message(chat.id, "assistant", "kept")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE messages SET stats = '{\"tokens\": 3}'")
    db.close()
    (read,) = store.messages(chat.id)
    assert (read.content, read.stats) == ("kept", None)


def test_answering_again_spares_earlier_messages_and_other_chats(store: ChatStore) -> None:
    chat = store.create()
    question = store.add_message(chat.id, "user", "q")
    answer = store.add_message(chat.id, "assistant", "a")
    other = chat_with(store, "other", "later than all of it")
    store.add_message(chat.id, "user", "q2")
    begun = store.answer_again(chat.id, answer.id)
    assert store.messages(chat.id) == [question, begun]
    assert (begun.role, begun.content, begun.state) == ("assistant", "", MessageState.STREAMING)
    assert len(store.messages(other)) == 1


def test_delete_can_be_undone_and_is_final_a_day_later(reopen: Reopen) -> None:
    clock = Clock()
    store = reopen(clock)
    kept, gone = chat_with(store, "kept", "needle"), chat_with(store, "gone", "needle")
    store.delete(kept)
    store.delete(gone)
    assert store.chats() == []
    assert store.search("needle") == []
    store.undelete(kept)
    assert [chat.id for chat in store.chats()] == [kept]
    clock.now += 25 * 3600
    later = reopen(clock)
    later.undelete(gone)
    assert [chat.id for chat in later.chats()] == [kept]
    assert later.messages(gone) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("100%", ["percent"]),
        ("%", ["percent"]),
        ("snake_case", ["underscore"]),
        ("_", ["underscore"]),
        ("C:\\temp", ["backslash"]),
        ("PERCENT", ["percent"]),
        ("no such text", []),
        ("  ", ["backslash", "underscore", "percent"]),
    ],
)
def test_search_takes_text_literally(store: ChatStore, text: str, found: list[str]) -> None:
    chat_with(store, "percent", "it is 100% sure")
    chat_with(store, "underscore", "a snake_case name")
    chat_with(store, "backslash", "in C:\\temp\\new")
    assert [chat.title for chat in store.search(text)] == found


def test_interrupt_streaming_marks_only_open_answers(store: ChatStore, reopen: Reopen) -> None:
    chat = store.create()
    done = store.add_message(chat.id, "assistant", "done")
    store.add_message(chat.id, "assistant", "half", MessageState.STREAMING)
    reopened = reopen()
    assert reopened.interrupt_streaming() == 1
    assert [message.state for message in reopened.messages(chat.id)] == [done.state, MessageState.INTERRUPTED]
    assert reopened.interrupt_streaming() == 0


def test_what_was_written_survives_sigkill(path: Path, reopen: Reopen) -> None:
    code = f"""
import os, signal
from pathlib import Path
from app.core.chats import *
store = ChatStore(Path({str(path)!r}))
chat = store.create("survivor")
store.add_message(chat.id, "user", "question")
answer = store.add_message(chat.id, "assistant", "", MessageState.STREAMING)
store.update_message(answer.id, content="half an answer")
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == -9
    store = reopen()
    (chat,) = store.chats()
    assert [message.content for message in store.messages(chat.id)] == ["question", "half an answer"]


def test_two_processes_open_and_write_at_once(path: Path, reopen: Reopen) -> None:
    code = f"""
from pathlib import Path
from app.core.chats import *
store = ChatStore(Path({str(path)!r}))
assert not store.notice
chat = store.create("mine")
for number in range(100):
    while True:  # three at once may keep one waiting for longer than a window may be blocked
        try:
            store.add_message(chat.id, "user", str(number))
            break
        except NotSavedError:
            pass
store.close()
"""
    root = Path(__file__).parents[2]
    children = [subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.PIPE) for _ in range(3)]
    for child in children:
        _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (0, b"")
    store = reopen()
    assert sorted(len(store.messages(chat.id)) for chat in store.chats()) == [100, 100, 100]


@pytest.mark.parametrize("damage", ["not a database", "torn page"])
def test_corrupt_file_is_moved_aside_with_a_notice(path: Path, damage: str, reopen: Reopen) -> None:
    store = reopen()
    for number in range(50):
        chat_with(store, f"chat {number}", "x" * 2000)
    store.close()
    content = bytearray(path.read_bytes())
    if damage == "torn page":
        content[8192:40960] = b"\xa5" * (40960 - 8192)
    else:
        content[:100] = b"<html>" + bytes(94)
    path.write_bytes(content)

    store = reopen()
    (kept,) = path.parent.glob("chats.sqlite.corrupt-*")
    assert kept.read_bytes() == bytes(content)
    assert kept.name in store.notice
    assert store.chats() == []
    chat_with(store, "works", "again")
    assert len(reopen().chats()) == 1


def test_locked_file_is_not_taken_for_a_corrupt_one(path: Path, monkeypatch: pytest.MonkeyPatch, reopen: Reopen) -> None:
    monkeypatch.setattr("app.core.database._BUSY_SECONDS", 0.2)
    chat_with(reopen(), "kept", "a")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        reopen()
    holder.execute("ROLLBACK")
    holder.close()
    assert list(path.parent.glob("*.corrupt-*")) == []
    assert len(reopen().chats()) == 1


V1 = ("CREATE TABLE notes (text TEXT)",)
V2 = ("ALTER TABLE notes ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0", "CREATE INDEX pinned_notes ON notes(pinned)")


def test_many_open_a_new_file_at_the_same_moment(tmp_path: Path) -> None:
    def open_and_close(path: Path, barrier: Barrier) -> str:
        barrier.wait()
        connection, notice = open_database(path, (V1, V2))
        connection.execute("INSERT INTO notes VALUES ('mine', 0)")
        connection.close()
        return notice

    with ThreadPoolExecutor(6) as pool:
        for number in range(8):
            path, barrier = tmp_path / f"{number}.sqlite", Barrier(6)
            notices = [pool.submit(open_and_close, path, barrier) for _ in range(6)]
            assert [notice.result() for notice in notices] == [""] * 6
            with closing(sqlite3.connect(path)) as db:
                assert db.execute("SELECT count(*) FROM notes").fetchone() == (6,)
                assert db.execute("SELECT * FROM schema").fetchall() == [(2,)]


def test_file_that_cannot_be_opened_is_left_alone(path: Path) -> None:
    path.mkdir()
    with pytest.raises(sqlite3.OperationalError):
        ChatStore(path)
    assert list(path.parent.iterdir()) == [path]


def test_migration_keeps_rows_and_runs_once(path: Path) -> None:
    old, _ = open_database(path, (V1,))
    old.execute("INSERT INTO notes VALUES ('kept')")
    old.close()
    for _ in range(2):
        new, notice = open_database(path, (V1, V2))
        assert notice == ""
        assert new.execute("SELECT * FROM notes").fetchall() == [("kept", 0)]
        new.close()


def test_failed_migration_changes_nothing(path: Path) -> None:
    old, _ = open_database(path, (V1,))
    old.close()
    with pytest.raises(sqlite3.OperationalError):
        open_database(path, (V1, (V2[0], "CREATE NONSENSE")))
    again, _ = open_database(path, (V1, V2))
    again.close()


def test_newer_database_is_refused_and_left_alone(path: Path) -> None:
    newer, _ = open_database(path, (V1, V2))
    newer.close()
    before = path.read_bytes()
    with pytest.raises(DatabaseTooNewError, match="newer version"):
        open_database(path, (V1,))
    assert path.read_bytes() == before
    assert list(path.parent.glob("*.corrupt-*")) == []


LONG = "word " * 20_000


def test_a_full_disk_changes_nothing_and_says_so(store: ChatStore, reopen: Reopen) -> None:
    chat = store.create("Kept")
    _, answer = store.add_question(chat.id, "q")
    before = store.messages(chat.id)
    fill_disk(store)
    draft = store.create("Never")
    for change in (
        lambda: store.add_question(chat.id, LONG),
        lambda: store.add_question(draft.id, LONG),
        lambda: store.update_message(answer.id, content=LONG),
        lambda: store.rename(chat.id, LONG),
    ):
        with pytest.raises(NotSavedError, match=r"^the disk is full$"):
            change()
        assert store.messages(chat.id) == before
    other = reopen()
    assert [item.title for item in other.chats()] == ["Kept"]
    empty_disk(store)
    store.add_question(draft.id, LONG)
    assert len(other.chats()) == 2


def test_a_locked_file_does_not_hold_the_window_up(store: ChatStore, reopen: Reopen) -> None:
    other = reopen()
    other._db.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(NotSavedError, match="another program is using the file"):
        store.add_question(store.create().id, "q")
    assert time.monotonic() - begun < 1
    other._db.execute("ROLLBACK")


def test_a_locked_file_is_no_crash(store: ChatStore, reopen: Reopen) -> None:
    chat = store.create()
    store.add_question(chat.id, "q")
    store._db.execute("PRAGMA busy_timeout = 10")
    other = reopen()
    other._db.execute("BEGIN IMMEDIATE")
    with pytest.raises(NotSavedError, match="another program is using the file"):
        store.add_question(chat.id, "again")
    other._db.execute("ROLLBACK")
    store.add_question(chat.id, "again")
