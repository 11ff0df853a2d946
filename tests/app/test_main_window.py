"""The frame around the pages: rail, geometry, banner, and a bug in a slot that must not end the session."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QSize, Qt, QTimer
from PySide6.QtGui import QKeyEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPlainTextEdit, QPushButton, QToolButton, QWidget
from pytestqt.qtbot import QtBot

from app.main import _problems_shown
from app.main_window import MainWindow
from app.pages import PAGES, PageSpec
from app.pages.chat import ChatPage
from app.pages.services import Services
from app.pages.settings import SettingsPage
from app.widgets.error_banner import ErrorBanner
from app.widgets.theme import LIGHT


class Placeholder(QWidget):
    activations = 0

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)

    def activate(self) -> None:
        self.activations += 1


SPECS = (
    PageSpec("one", "First", "chat", f"{__name__}:Placeholder", "Ctrl+1"),
    PageSpec("two", "Second", "settings", f"{__name__}:Placeholder", "Ctrl+2", is_last=True),
)


@pytest.fixture
def window(qtbot: QtBot, services: Services, qapp: QApplication) -> Iterator[MainWindow]:
    services.theme.apply(qapp)
    window = MainWindow(services, SPECS)
    qtbot.addWidget(window)
    window.show()
    yield window
    qapp.setStyleSheet("")


def rail(window: MainWindow) -> list[QToolButton]:
    return [button for button in window.findChildren(QToolButton) if button.property("kind") == "rail"]


def test_every_listed_page_exists() -> None:
    for spec in PAGES:
        assert callable(spec.load())
        assert (Path(__file__).parents[2] / "resources" / "icons" / f"{spec.icon}.svg").exists()


def test_rail_shows_the_listed_pages_and_builds_them_when_first_shown(qtbot: QtBot, window: MainWindow) -> None:
    buttons = rail(window)
    assert [button.accessibleName() for button in buttons] == ["First", "Second"]
    assert all(button.toolTip() and not button.icon().isNull() for button in buttons)
    first = window.current_page
    assert len(window.findChildren(Placeholder)) == 1
    QTest.mouseClick(buttons[1], Qt.MouseButton.LeftButton)
    assert isinstance(window.current_page, Placeholder)
    assert window.current_page is not first
    assert [button.isChecked() for button in buttons] == [False, True]
    assert window.focusWidget() is window.current_page
    QTest.keyClick(window, Qt.Key.Key_1, Qt.KeyboardModifier.ControlModifier)
    assert isinstance(window.current_page, Placeholder)
    assert window.current_page is first
    assert window.current_page.activations == 2
    assert len(window.findChildren(Placeholder)) == 2


@pytest.fixture
def full(qtbot: QtBot, services: Services, qapp: QApplication) -> Iterator[MainWindow]:
    """The window with its real pages and one chat, open."""
    services.theme.apply(qapp)
    services.chats.add_message(services.chats.create("Letter").id, "user", "Dear landlord")
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    qtbot.waitUntil(window.isActiveWindow)
    page = chat_page(window)
    page._open(services.chats.chats()[0])
    yield window
    services.engine.stop()
    qapp.setStyleSheet("")


def chat_page(window: MainWindow) -> ChatPage:
    page = window.current_page
    assert isinstance(page, ChatPage)
    return page


@pytest.mark.parametrize("where", ["composer", "list", "rail"])
def test_shortcuts_work_wherever_the_keyboard_is(full: MainWindow, services: Services, where: str) -> None:
    page, control = chat_page(full), Qt.KeyboardModifier.ControlModifier

    def press(key: Qt.Key, modifier: Qt.KeyboardModifier = control) -> None:
        {"composer": page._composer.field, "list": page._list._list, "rail": rail(full)[0]}[where].setFocus()
        QTest.keyClick(full.focusWidget() or full, key, modifier)

    press(Qt.Key.Key_M)
    assert not services.settings.meter_visible
    for key in (Qt.Key.Key_F, Qt.Key.Key_K):
        press(key)
        assert page._list._search.hasFocus()
    press(Qt.Key.Key_F2, Qt.KeyboardModifier.NoModifier)
    title = QApplication.focusWidget()
    assert title is not None
    assert title.accessibleName() == "Title"
    QTest.keyClick(title, Qt.Key.Key_Escape)
    press(Qt.Key.Key_N)
    assert page._chat.chat is None
    press(Qt.Key.Key_Q)
    assert not full.isVisible()


def test_a_page_can_ask_for_another(full: MainWindow) -> None:
    chat_page(full).page_wanted.emit("settings")
    assert isinstance(full.current_page, SettingsPage)


def test_size_is_sane_and_remembered(qtbot: QtBot, window: MainWindow, services: Services) -> None:
    assert window.minimumSize() == QSize(760, 480)
    available = window.screen().availableSize()
    assert window.width() <= available.width()
    assert window.height() <= available.height()
    window.resize(761, 500)
    window.close()
    again = MainWindow(services, SPECS)
    qtbot.addWidget(again)
    assert again.size() == QSize(761, 500)


@pytest.mark.parametrize("saved", ["not base64", "AAAA", "Zm9v"])
def test_unusable_geometry_is_ignored(qtbot: QtBot, services: Services, saved: str) -> None:
    services.settings.window_geometry = saved
    window = MainWindow(services, SPECS)
    qtbot.addWidget(window)
    assert window.width() >= 760


def test_rail_icons_follow_the_theme(window: MainWindow, services: Services) -> None:
    def colour() -> int:
        return rail(window)[0].icon().pixmap(20, 20).toImage().pixelColor(5, 4).lightness()

    light = colour()
    services.theme.set_mode("dark")
    assert colour() > 200 > light
    services.theme.set_mode("light")
    assert services.theme.palette is LIGHT


def test_a_bug_in_a_slot_is_shown_and_logged(qtbot: QtBot, window: MainWindow, caplog: pytest.LogCaptureFixture) -> None:
    def bug() -> None:
        raise RuntimeError("a bug in a slot")

    (banner,) = window.findChildren(ErrorBanner)
    hook = sys.excepthook
    with _problems_shown(window):
        QTimer.singleShot(0, bug)
        qtbot.waitUntil(banner.isVisible, timeout=2000)
    assert sys.excepthook is hook
    assert banner.sentence == "Something in Stoker went wrong. The details and the log say what."
    assert "a bug in a slot" in caplog.text


def test_banner_shows_details_and_actions_on_demand(qtbot: QtBot, services: Services) -> None:
    banner = ErrorBanner(services.theme)
    qtbot.addWidget(banner)
    done: list[str] = []
    banner.show_problem("The engine was killed.", "line 1\nline 2", [("Restart", lambda: done.append("restart"))])
    detail = banner.findChild(QPlainTextEdit)
    assert isinstance(detail, QPlainTextEdit)
    buttons = {button.text(): button for button in banner.findChildren(QPushButton)}
    assert not detail.isVisible()
    buttons["Details"].click()
    assert detail.isVisible()
    assert detail.toPlainText() == "line 1\nline 2"
    with qtbot.waitSignal(banner.closed, timeout=500):
        buttons["Restart"].click()
    assert done == ["restart"]
    assert not banner.isVisible()


def test_new_problem_replaces_the_old_one(qtbot: QtBot, services: Services) -> None:
    banner = ErrorBanner(services.theme)
    qtbot.addWidget(banner)
    banner.show_problem("First", "detail", [("Restart", lambda: None)])
    banner.show_problem("<b>Second</b>")
    qtbot.wait(10)
    visible = [button.text() for button in banner.findChildren(QPushButton) if button.isVisible()]
    assert visible == []
    assert "<b>Second</b>" in [label.text() for label in banner.findChildren(QLabel)]
    QTest.keyClick(banner, Qt.Key.Key_Escape)
    assert not banner.isVisible()


@pytest.mark.parametrize("key", [Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space])
def test_the_keyboard_presses_the_button_that_has_the_focus(qtbot: QtBot, window: MainWindow, key: Qt.Key) -> None:
    rail(window)[1].setFocus()
    qtbot.keyClick(rail(window)[1], key)
    assert window.current_page is window._pages["two"]


def test_a_key_that_is_held_presses_once(qtbot: QtBot, window: MainWindow) -> None:
    button, clicks = QPushButton(window.current_page), list[int]()
    button.show()
    button.pressed.connect(lambda: clicks.append(1))
    button.setFocus()
    for is_repeated in (False, True, True):
        event = QKeyEvent(QEvent.Type.KeyPress, Qt.Key.Key_Return, Qt.KeyboardModifier.NoModifier, "\r", is_repeated)
        QApplication.sendEvent(button, event)
    assert len(clicks) == 1
