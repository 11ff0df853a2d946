"""The models and downloads pages over a fake download child: what is shown, and what each click asks for."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QPushButton, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from app.core.row import RowView
from app.main_window import MainWindow
from app.pages.downloads import DownloadsPage
from app.pages.models import ModelsPage
from app.pages.models.page import Asker
from app.pages.services import Services
from app.widgets.chip import Chip
from app.widgets.model_row import ModelRow
from app.widgets.progress_row import ProgressRow
from app.widgets.token_dialog import TokenDialog
from engine.protocol import DownloadState
from tests.app.conftest import MakeStore, services_over

MakePage = Callable[..., ModelsPage]


class Person:
    """Answers what a page asks."""

    def __init__(self) -> None:
        self.folder, self.yes = "", True
        self.questions: list[str] = []

    def confirm(self, parent: QWidget, question: str, word: str) -> bool:
        self.questions.append(f"{question} [{word}]")
        return self.yes

    @property
    def asker(self) -> Asker:
        return Asker(lambda parent, title: self.folder, self.confirm)


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture
def over(services: Services, make_store: MakeStore) -> Callable[..., Services]:
    """The services over a fake child in another mode."""

    def make(*mode: str) -> Services:
        return services_over(services.paths, services.chats, services.engine, make_store(*mode))

    return make


@pytest.fixture
def make_page(over: Callable[..., Services], person: Person, qtbot: QtBot, qapp: QApplication) -> MakePage:
    def make(*mode: str, width: int = 1224, height: int = 744) -> ModelsPage:
        services = over(*mode)
        services.theme.apply(qapp)
        page = ModelsPage(services, asker=person.asker)
        qtbot.addWidget(page)
        page.resize(width, height)
        page.show()
        services.downloads.begin()
        page.activate()
        has_looked = lambda: bool(page._browser.ground and page._library.models is not None)  # noqa: E731
        qtbot.waitUntil(has_looked, timeout=10_000)
        return page

    return make


def rows(page: QWidget) -> list[ModelRow]:
    return [row for row in page.findChildren(ModelRow) if row.isVisible()]


def views(page: ModelsPage) -> list[RowView]:
    return list(page._rows.items)


def row_of(page: ModelsPage, title: str) -> ModelRow:
    return next(row for row in rows(page) if row.accessibleName().startswith(title))


def button(parent: QWidget, text: str) -> QPushButton:
    return next(item for item in parent.findChildren(QPushButton) if item.text() == text and item.isVisible())


def choose(row: QWidget, text: str) -> None:
    """From its menu."""
    more = next(item for item in row.findChildren(QToolButton) if item.menu() is not None)
    next(action for action in more.menu().actions() if action.text() == text).trigger()


def show(page: ModelsPage, view: str) -> None:
    page._header._chips[view].click()


def test_recommended_shows_what_runs_here_the_fastest_first(make_page: MakePage) -> None:
    page = make_page()
    assert [view.title for view in views(page)] == ["gpt-oss-20b", "Qwen3-30B-A3B", "gpt-oss-120b", "Llama-gated-8x"]
    first, second = views(page)[:2]
    assert (first.chip, first.speed, first.size) == ("Fits in RAM", "20–24", "MXFP4 · 13.8 GB")
    assert (second.chip, second.size, second.actions[0][0]) == ("Streams from disk", "FP8 · 31.2 GB", "Get")
    assert first.actions[0][0] == "Run", "it is here already"
    show(page, "all")
    words = {view.title: view.chip for view in views(page)}
    assert (words["Qwen3-235B-A22B"], words["GLM-5.3-Flash"]) == ("Too big for this disk", "Not supported yet")
    assert all(row.accessibleName() for row in rows(page))


def test_sorting_and_the_format_filter(make_page: MakePage) -> None:
    page = make_page()
    header = page._header
    header._sort.setCurrentIndex(header._sort.findData("name"))
    header._sort.activated.emit(0)
    assert next(view.title for view in views(page)) == "gpt-oss-120b"
    header._format.setCurrentIndex(header._format.findData("MXFP4"))
    header._format.activated.emit(0)
    assert {view.title for view in views(page)} == {"gpt-oss-20b", "gpt-oss-120b"}


def test_search_of_the_hub_with_verdicts_and_a_gate(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    field = page.findChild(QLineEdit)
    assert field is not None
    QTest.keyClicks(field, "coder")
    QTest.keyClick(field, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(views(page)) == 2 and all(view.chip for view in views(page)))
    assert [(view.title, view.chip) for view in views(page)] == [
        ("Qwen3-Coder-30B-A3B-Instruct", "Streams from disk"), ("Qwen3-Coder-Private", "Streams from disk"),
    ]  # fmt: skip
    assert "812K downloads" in views(page)[0].subtitle
    field.clear()
    assert len(views(page)) == 6, "the catalogue is back"


def test_without_a_network_the_catalogue_stays(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page("offline")
    assert len(views(page)) == 4
    page._search("coder")
    qtbot.waitUntil(lambda: "not online" in page._empty.words)
    button(page, "Show the catalogue").click()
    qtbot.waitUntil(lambda: len(views(page)) == 6)


def test_details_show_card_formats_and_what_memory_buys(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    row = row_of(page, "Qwen3-30B-A3B")
    row.setFocus()
    QTest.keyClick(row, Qt.Key.Key_Return)
    details = page._details
    qtbot.waitUntil(lambda: bool(details._card._text))
    assert details.isVisible()
    assert "Mixture-of-Experts" in details._card._text
    assert [view.title for view in details._releases.items] == ["FP8", "BF16"]
    assert "20 GB more RAM" in details._gain.text()
    QTest.keyClick(details, Qt.Key.Key_Escape)
    assert not details.isVisible()


def test_get_starts_a_download_and_run_opens_the_chat(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page("normal", "--rate", "30e6")
    queue = page._services.downloads
    button(row_of(page, "Qwen3-30B-A3B"), "Get").click()
    qtbot.waitUntil(lambda: bool(queue.jobs))
    qtbot.waitUntil(lambda: any(row.isVisible() for row in page.findChildren(ProgressRow)))
    qtbot.waitUntil(lambda: queue.jobs[0].state is DownloadState.DONE, timeout=10_000)
    qtbot.waitUntil(lambda: views(page)[1].actions[0][0] == "Run")
    with qtbot.waitSignal(page.opening_wanted) as wanted:
        button(row_of(page, "gpt-oss-20b"), "Run").click()
    assert wanted.args == ["chat", "/models/openai--gpt-oss-20b"]


def test_library_names_every_state_and_its_remedy(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    show(page, "here")
    shown = {view.title: (view.chip, view.actions[0][0]) for view in views(page)}
    assert shown == {
        "openai/gpt-oss-20b": ("Verified", "Run"), "stoker-demo-8x135m": ("Not compared", "Run"),
        "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8": ("Damaged", "Repair"),
        "mistralai/Mixtral-8x7B-Instruct-v0.1": ("Drive not available", "Refresh"), "old-llama": ("Cannot be loaded", "Show"),
    }  # fmt: skip
    assert page._library._away.isActive(), "a drive that comes back is noticed"
    assert page._header._chips["here"].text() == "On this computer 5"
    other = [text for text, _ in views(page)[1].actions]
    assert not {"Remove…", "Move to another folder…"} & set(other), "what Stoker did not bring it does not touch"


def test_removing_asks_and_uses_the_trash(
    qtbot: QtBot, make_page: MakePage, person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setenv("FAKE_STORE_FILE", str(file))
    trashed: list[str] = []

    def move_to_trash(name: str) -> bool:
        trashed.append(name)
        return True

    monkeypatch.setattr("app.pages.models.library.QFile.moveToTrash", move_to_trash)
    page = make_page()
    show(page, "here")
    person.yes = False
    choose(row_of(page, "openai/gpt-oss-20b"), "Remove…")
    qtbot.waitUntil(lambda: bool(person.questions))
    assert person.questions == ["Move openai/gpt-oss-20b, 13.8 GB, to the trash? [Move to trash]"]
    assert trashed == []
    person.yes = True
    choose(row_of(page, "openai/gpt-oss-20b"), "Remove…")
    qtbot.waitUntil(lambda: len(views(page)) == 4)
    assert trashed == [str(file)]
    assert "in the trash" in page._notice.sentence


def test_without_a_trash_it_asks_again(
    qtbot: QtBot, make_page: MakePage, person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"weights")
    monkeypatch.setenv("FAKE_STORE_FILE", str(file))
    monkeypatch.setattr("app.pages.models.library.QFile.moveToTrash", lambda name: False)
    page = make_page()
    show(page, "here")
    choose(row_of(page, "openai/gpt-oss-20b"), "Remove…")
    qtbot.waitUntil(lambda: len(views(page)) == 4)
    assert "for good" in person.questions[1]


def test_comparing_shows_how_far_it_is_and_stops(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    show(page, "here")
    choose(row_of(page, "openai/gpt-oss-20b"), "Compare with checksums")
    qtbot.waitUntil(lambda: "%" in views(page)[0].chip)
    button(row_of(page, "openai/gpt-oss-20b"), "Stop").click()
    qtbot.waitUntil(lambda: views(page)[0].chip == "Verified")
    assert not page._banner.isVisible(), "stopping is no problem"


def test_moving_and_adding_folders(qtbot: QtBot, make_page: MakePage, person: Person) -> None:
    page = make_page()
    show(page, "here")
    person.folder = "/elsewhere"
    choose(row_of(page, "openai/gpt-oss-20b"), "Move to another folder…")
    qtbot.waitUntil(lambda: page._library.entry("/elsewhere/openai--gpt-oss-20b") is not None)
    person.folder = "/nothing/here"
    button(page, "Add folder").click()
    qtbot.waitUntil(lambda: "no model folder" in page._banner.sentence)
    person.folder = "/more"
    button(page, "Add folder").click()
    qtbot.waitUntil(lambda: len(views(page)) == 6)


def test_a_folder_that_changes_is_looked_at_again(qtbot: QtBot, make_page: MakePage, person: Person, tmp_path: Path) -> None:
    page = make_page()
    person.folder = str(tmp_path)
    button(page, "Add folder").click()
    qtbot.waitUntil(lambda: str(tmp_path) in page._library._watcher.directories())
    with qtbot.waitSignal(page._services.store.models, timeout=5000):
        (tmp_path / "new-model").mkdir()


def test_everything_is_reached_by_keyboard(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    page.activateWindow()
    first, second = rows(page)[:2]
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Down)
    assert second.hasFocus()
    wanted = {"Search Hugging Face", "Run gpt-oss-20b", "Get Qwen3-30B-A3B", "More for gpt-oss-20b"}
    focus, names = page._header.search, set()
    for _ in range(60):
        names.add(focus.accessibleName())
        focus = focus.nextInFocusChain()  # type: ignore[assignment]
    assert wanted <= names


@pytest.mark.parametrize(("width", "height"), [(968, 600), (704, 480)])
def test_small_windows_hold_every_row_whole(qtbot: QtBot, make_page: MakePage, width: int, height: int) -> None:
    page = make_page(width=width, height=height)
    qtbot.waitUntil(lambda: rows(page)[0].width() > 100)
    assert page.minimumSizeHint().width() <= width
    for row in rows(page):
        shown = [item for item in row.findChildren(QWidget) if item.isVisible() and item.parent() is row]
        assert all(item.geometry().right() <= row.width() for item in shown)
        chip = row.findChild(Chip)
        assert chip is not None
        assert chip.width() >= chip.sizeHint().width(), "a verdict is never cut"


@pytest.fixture
def downloads(over: Callable[..., Services], person: Person, qtbot: QtBot, qapp: QApplication) -> DownloadsPage:
    services = over("scenes")
    services.theme.apply(qapp)
    page = DownloadsPage(services, confirm=person.confirm)
    qtbot.addWidget(page)
    page.resize(1224, 744)
    page.show()
    services.downloads.begin()
    qtbot.waitUntil(lambda: bool(services.downloads.jobs) and services.downloads.progress("openai/gpt-oss-120b") is not None)
    return page


def job_row(page: DownloadsPage, repo: str) -> ProgressRow:
    return next(row for row in page.findChildren(ProgressRow) if row.accessibleName().startswith(repo))


def test_downloads_say_how_far_each_is_and_why_not(downloads: DownloadsPage) -> None:
    said = [row.accessibleName() for row in downloads.findChildren(ProgressRow)]
    assert said[0] == "openai/gpt-oss-120b: 21.8 of 65.3 GB · 84.0 MB/s · 9 min left · shard 6 of 15"
    assert any("12.4 GB more are needed" in words for words in said)
    assert any("Verified · 13.8 GB" in words for words in said)
    assert downloads._summary.text().startswith("5 downloads, 99.8 GB to go, 2 stopped · into ")
    assert button(job_row(downloads, "maker/Gated"), "Sign in…")
    assert button(job_row(downloads, "Qwen/Qwen3-30B"), "Resume")


def test_downloads_are_paused_moved_and_deleted(qtbot: QtBot, downloads: DownloadsPage, person: Person) -> None:
    queue = downloads._queue
    choose(job_row(downloads, "mistralai"), "Move to the top")
    qtbot.waitUntil(lambda: queue.jobs[0].repo.startswith("mistralai"))
    person.yes = False
    choose(job_row(downloads, "mistralai"), "Cancel and delete what has arrived…")
    assert person.questions == ["Delete the 61.0 GB of mistralai/Mixtral-8x7B-Instruct-v0.1 that have arrived? [Delete]"]
    person.yes = True
    choose(job_row(downloads, "mistralai"), "Cancel and delete what has arrived…")
    qtbot.waitUntil(lambda: all(not job.repo.startswith("mistralai") for job in queue.jobs))
    button(job_row(downloads, "openai/gpt-oss-120b"), "Pause").click()
    qtbot.waitUntil(lambda: queue.jobs[0].state is DownloadState.PAUSED)


def test_nothing_to_download_points_to_the_models(over: Callable[..., Services], qtbot: QtBot) -> None:
    page = DownloadsPage(over("empty"))
    qtbot.addWidget(page)
    page.show()
    with qtbot.waitSignal(page.page_wanted) as wanted:
        button(page, "Browse models").click()
    assert wanted.args == ["models"]


def test_the_token_dialog_hands_on_a_token_and_never_shows_one(qtbot: QtBot) -> None:
    saved: list[tuple[str, bool]] = []

    def save(token: str, keep: bool) -> str:
        saved.append((token, keep))
        return "kept"

    dialog = TokenDialog(save, repo="maker/Gated")
    qtbot.addWidget(dialog)
    dialog.show()
    field = dialog.findChild(QLineEdit)
    assert field is not None
    assert field.echoMode() is QLineEdit.EchoMode.Password
    use = button(dialog, "Use this token")
    assert not use.isEnabled()
    QTest.keyClicks(field, " hf_abcdefgh ")
    use.click()
    assert (saved, dialog.said) == ([("hf_abcdefgh", True)], "kept")


def test_run_on_another_page_loads_the_model_in_the_chat(qtbot: QtBot, services: Services, qapp: QApplication) -> None:
    services.theme.apply(qapp)
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.show()
    services.engine.start()
    window.show_page("models")
    page = window.current_page
    assert isinstance(page, ModelsPage)
    page.opening_wanted.emit("chat", "/models/qwen3-30b-a3b")
    with qtbot.waitSignal(services.engine.loaded, timeout=10_000) as loaded:
        pass
    assert loaded.args[0].plan.model_name == "qwen3-30b-a3b"
    assert window.current_page is not page
    services.engine.stop()


def test_details_of_a_gated_model_offer_to_sign_in(qtbot: QtBot, make_page: MakePage) -> None:
    page = make_page()
    page._browser.catalogue = tuple(model for model in page._browser.catalogue if "gated" not in model.name)
    page._open("maker/Gated-8x7B")
    qtbot.waitUntil(lambda: page._details._sign_in.isVisible())
    assert "accept its terms" in page._details._sentence.text()
    assert replace(page._details._releases.items[0], actions=()).chip == "Sign in to see"
