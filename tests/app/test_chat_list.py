"""Headings by the local calendar, and a selection that survives a new title."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QAbstractItemModelTester
from pytestqt.qtbot import QtBot

from app.core.chats import ChatStore
from app.item_models.chat_list import ChatListModel, ChatListRole

NOON = datetime(2026, 12, 2, 12, 0).astimezone()


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now.timestamp()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[ChatStore]:
    store = ChatStore(tmp_path / "chats.sqlite", clock)
    yield store
    store.close()


def add(store: ChatStore, clock: Clock, title: str, ago: timedelta) -> int:
    clock.now = NOON - ago
    chat = store.create(title)
    store.add_message(chat.id, "user", f"about {title}")
    clock.now = NOON
    return chat.id


def texts(model: ChatListModel) -> list[str]:
    return [("# " if is_heading(model, row) else "") + model.index(row).data() for row in range(model.rowCount())]


def is_heading(model: ChatListModel, row: int) -> bool:
    return bool(model.index(row).data(ChatListRole.IS_HEADING))


def test_headings(qtbot: QtBot, store: ChatStore, clock: Clock) -> None:
    for title, ago in (
        ("old", timedelta(days=8)), ("week", timedelta(days=7)), ("late yesterday", timedelta(hours=12, minutes=1)),
        ("just after midnight", timedelta(hours=11, minutes=59)), ("now", timedelta()),
    ):  # fmt: skip
        add(store, clock, title, ago)
    model = ChatListModel(store, today=NOON.date)
    QAbstractItemModelTester(model, QAbstractItemModelTester.FailureReportingMode.Fatal)
    assert texts(model) == [
        "# Today", "now", "just after midnight", "# Yesterday", "late yesterday", "# Previous 7 days", "week", "# Earlier",
        "old",
    ]  # fmt: skip
    assert model.flags(model.index(0)) == Qt.ItemFlag.NoItemFlags
    assert model.flags(model.index(1)) & Qt.ItemFlag.ItemIsSelectable


def test_new_title_keeps_the_rows_and_a_new_chat_resets(qtbot: QtBot, store: ChatStore, clock: Clock) -> None:
    chat_id = add(store, clock, "before", timedelta())
    model = ChatListModel(store, today=NOON.date)
    resets: list[int] = []
    model.modelReset.connect(lambda: resets.append(1))
    store.rename(chat_id, "after")
    with qtbot.waitSignal(model.dataChanged, timeout=100):
        model.refresh()
    assert (texts(model), resets) == (["# Today", "after"], [])
    add(store, clock, "second", timedelta())
    model.refresh()
    assert resets == [1]
    assert model.index_of(chat_id).data(ChatListRole.CHAT_ID) == chat_id


def test_the_chat_that_is_answered_is_marked(qtbot: QtBot, store: ChatStore, clock: Clock) -> None:
    first, second = add(store, clock, "tea", timedelta()), add(store, clock, "coffee", timedelta())
    model = ChatListModel(store, today=NOON.date)
    model.set_writing(first)
    assert model.index_of(first).data(ChatListRole.IS_WRITING)
    assert model.index_of(first).data(Qt.ItemDataRole.AccessibleTextRole) == "tea, writing…"
    with qtbot.waitSignals([model.dataChanged, model.dataChanged], timeout=100):
        model.set_writing(second)
    assert not model.index_of(first).data(ChatListRole.IS_WRITING)
    assert model.index_of(second).data(ChatListRole.IS_WRITING)


def test_nothing_found_is_said(qtbot: QtBot, store: ChatStore, clock: Clock) -> None:
    model = ChatListModel(store, today=NOON.date)
    assert texts(model) == []
    add(store, clock, "tea", timedelta())
    model.set_search("coffee")
    assert texts(model) == ["# Nothing found"]
    assert model.first_chat is None


def test_search_and_back(qtbot: QtBot, store: ChatStore, clock: Clock) -> None:
    add(store, clock, "tea", timedelta())
    coffee = add(store, clock, "coffee", timedelta(days=1))
    model = ChatListModel(store, today=NOON.date)
    model.set_search("about coffee")
    assert texts(model) == ["# Yesterday", "coffee"]
    assert model.chat_at(model.index_of(coffee)) is not None
    assert model.chat_at(model.index(0)) is None
    model.set_search("")
    assert model.rowCount() == 4
