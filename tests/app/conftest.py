"""A data folder, a fake engine and the services around them, each test its own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication

from app.backends.local import LocalEngine
from app.backends.queue import DownloadQueue
from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.chats import ChatStore
from app.core.paths import Paths, app_paths
from app.core.settings import Settings
from app.pages.services import Services
from app.widgets.theme import Theme

FAKE_STORE = Path(__file__).parents[1] / "helpers" / "fake_store.py"
FAKE_ENGINE = Path(__file__).parents[1] / "helpers" / "fake_engine.py"
MakeEngine = Callable[..., LocalEngine]
MakeStore = Callable[..., Store]


def fill_disk(chats: ChatStore) -> None:
    """Not one page more: SQLite then says what it says of a full disk."""
    (pages,) = chats._db.execute("PRAGMA page_count").fetchone()
    chats._db.execute(f"PRAGMA max_page_count = {pages}")


def empty_disk(chats: ChatStore) -> None:
    chats._db.execute("PRAGMA max_page_count = 1000000")


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return app_paths(tmp_path / "data")


@pytest.fixture
def make_engine(qapp: QApplication) -> Iterator[MakeEngine]:
    """`make_engine("crash", "--after", "5")`: a `LocalEngine` over the fake, not started; stopped after the test."""
    made: list[LocalEngine] = []

    def make(mode: str = "normal", *options: str, hello_ms: int = 20_000, stop_ms: int = 2000) -> LocalEngine:
        arguments = (str(FAKE_ENGINE), mode, *options)
        made.append(LocalEngine(sys.executable, arguments, hello_ms=hello_ms, stop_ms=stop_ms))
        return made[-1]

    yield make
    for engine in made:
        engine.stop()


@pytest.fixture
def make_store(qapp: QApplication) -> Iterator[MakeStore]:
    """`make_store("offline")`: a `Store` over the fake download child; stopped after the test."""
    made: list[Store] = []

    def make(mode: str = "normal", *options: str) -> Store:
        made.append(Store(sys.executable, (str(FAKE_STORE), mode, *options)))
        return made[-1]

    yield make
    for store in made:
        store.stop()


@pytest.fixture
def services(
    paths: Paths, make_engine: MakeEngine, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Services]:
    monkeypatch.setattr("app.backends.token._keyring", lambda: None)  # that of whoever runs the tests is not ours
    chats, engine, store = ChatStore(paths.chats), make_engine("normal", "--rate", "200"), make_store()
    yield services_over(paths, chats, engine, store)
    chats.close()


def services_over(paths: Paths, chats: ChatStore, engine: LocalEngine, store: Store) -> Services:
    settings, token = Settings(paths.settings), TokenStore(paths.token)
    queue = DownloadQueue(store, settings, token)
    return Services(chats, settings, engine, Theme("light"), paths, store, queue, token)
