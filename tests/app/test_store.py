"""The download child behind Qt: every question answered once, whatever the child does; the queue that lives on it; the token."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keyring
import keyring.backend
import keyring.backends.fail
import keyring.backends.null
import keyring.errors
import pytest
from pytestqt.qtbot import QtBot

from app.backends.queue import DownloadQueue
from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.paths import Paths
from app.core.settings import Settings
from engine.protocol import DownloadJob, DownloadState, Failed, ListCatalogue, ListModels, PlanFor, SearchHub, VerifyModel
from tests.app.conftest import MakeStore

REPO = "maker/Small-8x1"


class Heard:
    """What came of a question."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.failed: list[Failed] = []
        self.steps: list[Any] = []

    @property
    def callbacks(self) -> dict[str, Callable[[Any], object]]:
        return {"done": self.done.append, "failed": self.failed.append, "step": self.steps.append}


@pytest.fixture
def make_queue(make_store: MakeStore, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Callable[..., DownloadQueue]:
    monkeypatch.setattr("app.backends.token._keyring", lambda: None)

    def make(*mode: str, **settings: Any) -> DownloadQueue:
        chosen = Settings(paths.settings)
        for key, value in settings.items():
            chosen.set(key, value)
        return DownloadQueue(make_store(*mode), chosen, TokenStore(paths.token))

    return make


def test_questions_are_answered_each_to_whoever_asked(qtbot: QtBot, make_store: MakeStore) -> None:
    store, models, catalogue, plan = make_store(), Heard(), Heard(), Heard()
    store.ask(ListModels, **models.callbacks)
    store.ask(ListCatalogue, "", **catalogue.callbacks)
    store.ask(PlanFor, "maker/Gated-8x7B", "", "", **plan.callbacks)
    assert not models.done, "never before ask returns"
    qtbot.waitUntil(lambda: bool(models.done and catalogue.done and plan.failed))
    assert len(models.done[0].models) == 5
    assert catalogue.done[0].models[0].releases[0].verdict.tokens_per_second == (19.6, 24.1)
    assert plan.failed[0].code == "hub.gated"


def test_a_child_that_died_fails_what_is_open_and_the_next_question_starts_another(qtbot: QtBot, make_store: MakeStore) -> None:
    from engine.protocol import RunDownloads

    store, run, again = make_store("crash"), Heard(), Heard()
    with qtbot.waitSignal(store.died, timeout=10_000) as died:
        store.ask(RunDownloads, "", 0, **run.callbacks)
    assert (run.failed[0].code, "downloader" in died.args[0]) == ("engine.died", True)
    first = store.pid
    store.ask(ListModels, **again.callbacks)
    qtbot.waitUntil(lambda: bool(again.done))
    assert store.pid != first


def test_another_version_is_refused_in_words(qtbot: QtBot, make_store: MakeStore) -> None:
    heard = Heard()
    make_store("wrong-version").ask(ListModels, **heard.callbacks)
    qtbot.waitUntil(lambda: bool(heard.failed))
    assert "another version" in heard.failed[0].text


def test_a_child_that_cannot_start_is_told(qtbot: QtBot) -> None:
    store, heard = Store("/no/such/python"), Heard()
    store.ask(ListModels, **heard.callbacks)
    qtbot.waitUntil(lambda: bool(heard.failed))
    assert heard.failed[0].code == "engine.died"


def test_long_work_is_cancelled(qtbot: QtBot, make_store: MakeStore) -> None:
    store, heard = make_store(), Heard()
    number = store.ask(VerifyModel, "/models/openai--gpt-oss-20b", **heard.callbacks)
    qtbot.waitUntil(lambda: len(heard.steps) > 2)
    store.cancel(number)
    qtbot.waitUntil(lambda: bool(heard.failed))
    assert heard.failed[0].code == "store.stopped"


def test_nothing_is_asked_of_a_stopped_store(qtbot: QtBot, make_store: MakeStore) -> None:
    store, heard = make_store(), Heard()
    store.stop()
    store.ask(SearchHub, "x", **heard.callbacks)
    qtbot.waitUntil(lambda: bool(heard.failed))
    assert store.pid == 0


def test_a_download_runs_to_its_end_and_is_told_once(qtbot: QtBot, make_queue: Callable[..., DownloadQueue]) -> None:
    queue = make_queue("normal", "--rate", "40e6")
    ended: list[DownloadJob] = []
    rates: list[float | None] = []
    queue.ended.connect(ended.append)

    def note(repo: str) -> None:
        progress = queue.progress(repo)
        rates.append(progress.bytes_per_second if progress is not None else None)

    queue.progressed.connect(note)
    queue.add(REPO)
    queue.add(REPO)
    qtbot.waitUntil(lambda: bool(ended))
    qtbot.waitUntil(lambda: not queue.is_running)
    assert [(job.repo, job.state) for job in queue.jobs] == [(REPO, DownloadState.DONE)]
    assert [job.state for job in ended] == [DownloadState.DONE]
    assert rates
    assert queue.progress(REPO) is None, "no rate of what has ended"


def test_pause_move_and_cancel(qtbot: QtBot, make_queue: Callable[..., DownloadQueue]) -> None:
    queue = make_queue("normal", "--rate", "1e6")
    for repo in ("a/One", "a/Two", "a/Three"):
        queue.add(repo)
    qtbot.waitUntil(lambda: len(queue.jobs) == 3 and queue.jobs[0].state is DownloadState.RUNNING)
    queue.move("a/Three", 0)
    qtbot.waitUntil(lambda: [job.repo for job in queue.jobs] == ["a/Three", "a/One", "a/Two"])
    queue.pause("a/One")
    qtbot.waitUntil(lambda: queue.job("a/One") is not None and queue.job("a/One").state is DownloadState.PAUSED)  # type: ignore[union-attr]
    queue.cancel("a/Two", delete=True)
    qtbot.waitUntil(lambda: queue.job("a/Two") is None)
    assert queue.num_open == 2


def test_what_was_under_way_goes_on_at_start_unless_told_otherwise(
    qtbot: QtBot, make_queue: Callable[..., DownloadQueue]
) -> None:
    queue = make_queue("scenes", resume_downloads=False)
    queue.begin()
    qtbot.waitUntil(lambda: bool(queue.jobs))
    assert not queue.is_running
    other = make_queue("scenes", resume_downloads=True)
    other.begin()
    qtbot.waitUntil(lambda: other.is_running)


def test_a_child_that_keeps_dying_is_told_after_some_tries(
    qtbot: QtBot, make_queue: Callable[..., DownloadQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.backends.queue._AGAIN_MS", 10)
    queue = make_queue("crash")
    with qtbot.waitSignal(queue.problem, timeout=20_000) as told:
        queue.add(REPO)
    assert "downloader" in told.args[0]
    assert not queue.is_running


def test_the_token_falls_back_to_a_file_for_this_person_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.backends.token._keyring", lambda: None)
    file = tmp_path / "hub-token"
    store = TokenStore(file)
    assert store.value == ""
    assert str(file) in store.save("hf_secret")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert TokenStore(file).value == "hf_secret"
    store.save("hf_other", keep=False)
    assert (store.value, TokenStore(file).value) == ("hf_other", "hf_secret")
    store.save("")
    assert not file.exists()
    assert TokenStore(file).value == ""


class Memory(keyring.backend.KeyringBackend):
    """A keyring that works."""

    priority = 9
    kept: dict[tuple[str, str], str]

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def delete_password(self, service: str, username: str) -> None:
        if (service, username) not in self.kept:
            raise keyring.errors.PasswordDeleteError
        del self.kept[service, username]


def _memory() -> Memory:
    ring = Memory()  # type: ignore[no-untyped-call]
    ring.kept = {}
    return ring


@pytest.fixture
def use_backend() -> Iterator[Callable[[keyring.backend.KeyringBackend], None]]:
    before = keyring.get_keyring()
    yield keyring.set_keyring
    keyring.set_keyring(before)


def test_the_token_is_kept_in_the_systems_keyring(
    tmp_path: Path, use_backend: Callable[[keyring.backend.KeyringBackend], None]
) -> None:
    ring, file = _memory(), tmp_path / "hub-token"
    use_backend(ring)
    assert "keyring" in TokenStore(file).save("hf_secret")
    assert list(ring.kept.values()) == ["hf_secret"]
    assert not file.exists()
    assert TokenStore(file).value == "hf_secret"
    TokenStore(file).save("")
    assert ring.kept == {}
    assert TokenStore(file).value == ""


def test_a_token_in_the_file_moves_into_a_keyring_when_it_is_saved_again(
    tmp_path: Path, use_backend: Callable[[keyring.backend.KeyringBackend], None]
) -> None:
    file = tmp_path / "hub-token"
    use_backend(keyring.backends.fail.Keyring())
    assert str(file) in TokenStore(file).save("hf_secret")
    ring = _memory()
    use_backend(ring)
    assert TokenStore(file).value == "hf_secret"
    TokenStore(file).save("hf_secret")
    assert not file.exists()
    assert list(ring.kept.values()) == ["hf_secret"]


@pytest.mark.parametrize("backend", [keyring.backends.fail.Keyring, keyring.backends.null.Keyring], ids=["fail", "null"])
def test_without_a_keyring_the_token_is_kept_in_a_file(
    tmp_path: Path,
    use_backend: Callable[[keyring.backend.KeyringBackend], None],
    backend: Callable[[], keyring.backend.KeyringBackend],
) -> None:
    use_backend(backend())
    file = tmp_path / "hub-token"
    assert str(file) in TokenStore(file).save("hf_secret")
    assert TokenStore(file).value == "hf_secret"


def test_a_keyring_is_preferred_and_a_broken_one_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[tuple[str, str], str] = {}
    ring = SimpleNamespace(
        set_password=lambda service, user, value: kept.__setitem__((service, user), value),
        get_password=lambda service, user: kept.get((service, user)),
        delete_password=lambda service, user: kept.pop((service, user)),
    )
    monkeypatch.setattr("app.backends.token._keyring", lambda: ring)
    file = tmp_path / "hub-token"
    assert "keyring" in TokenStore(file).save("hf_secret")
    assert not file.exists()
    assert TokenStore(file).value == "hf_secret"

    def refuse(*_: str) -> None:
        raise RuntimeError("no bus")

    monkeypatch.setattr("app.backends.token._keyring", lambda: SimpleNamespace(set_password=refuse, get_password=refuse))
    assert str(file) in TokenStore(file).save("hf_second")
    assert TokenStore(file).value == "hf_second"
