"""Keys of the composer and what it says when nothing can be sent."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QInputMethodEvent
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.widgets.composer import Composer
from app.widgets.theme import Theme


@pytest.fixture
def composer(qtbot: QtBot) -> Composer:
    widget = Composer(Theme("light"))
    qtbot.addWidget(widget)
    widget.resize(600, 110)
    widget.show()
    widget.focus()
    return widget


def test_enter_sends_and_the_text_stays_until_it_is_safe(composer: Composer, qtbot: QtBot) -> None:
    qtbot.keyClicks(composer.field, "  hello ")
    with qtbot.waitSignal(composer.submitted) as sent:
        qtbot.keyClick(composer.field, Qt.Key.Key_Return)
    assert sent.args == ["hello"]
    assert composer.text == "  hello "
    composer.clear()
    assert composer.text == ""


def test_shift_enter_breaks_the_line(composer: Composer, qtbot: QtBot) -> None:
    qtbot.keyClicks(composer.field, "a")
    with qtbot.assertNotEmitted(composer.submitted):
        qtbot.keyClick(composer.field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    qtbot.keyClicks(composer.field, "b")
    assert composer.text == "a\nb"


def test_enter_while_an_input_method_composes_does_not_send(composer: Composer, qtbot: QtBot) -> None:
    qtbot.keyClicks(composer.field, "a")
    QApplication.sendEvent(composer.field, QInputMethodEvent("にほ", []))
    with qtbot.assertNotEmitted(composer.submitted):
        qtbot.keyClick(composer.field, Qt.Key.Key_Return)
    decided = QInputMethodEvent("", [])
    decided.setCommitString("日本")
    QApplication.sendEvent(composer.field, decided)
    with qtbot.waitSignal(composer.submitted):
        qtbot.keyClick(composer.field, Qt.Key.Key_Return)


def test_blank_is_not_sent(composer: Composer, qtbot: QtBot) -> None:
    qtbot.keyClicks(composer.field, "   ")
    with qtbot.assertNotEmitted(composer.submitted):
        qtbot.keyClick(composer.field, Qt.Key.Key_Return)


def test_blocked_says_why_and_keeps_the_text(composer: Composer, qtbot: QtBot) -> None:
    composer.set_blocked("There is no model yet")
    qtbot.keyClicks(composer.field, "draft")
    with qtbot.assertNotEmitted(composer.submitted):
        qtbot.keyClick(composer.field, Qt.Key.Key_Return)
    button = composer.findChild(QPushButton)
    assert isinstance(button, QPushButton)
    assert not button.isEnabled()
    assert button.toolTip() == "There is no model yet"
    assert composer.text == "draft"


def test_escape_and_button_stop_only_while_generating(composer: Composer, qtbot: QtBot) -> None:
    with qtbot.assertNotEmitted(composer.stopped):
        qtbot.keyClick(composer.field, Qt.Key.Key_Escape)
    composer.set_generating(True)
    with qtbot.waitSignal(composer.stopped):
        qtbot.keyClick(composer.field, Qt.Key.Key_Escape)
    button = composer.findChild(QPushButton)
    assert isinstance(button, QPushButton)
    assert button.text() == "Stop"
    with qtbot.waitSignal(composer.stopped):
        qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def test_the_answer_in_another_chat_can_be_stopped_and_is_named(composer: Composer, qtbot: QtBot) -> None:
    composer.set_blocked("“Tea <i>” is being answered")
    composer.set_generating(True, "“Tea <i>”")
    button = composer.findChild(QPushButton)
    assert isinstance(button, QPushButton)
    assert (button.text(), button.accessibleName()) == ("Stop", "Stop the answer in “Tea <i>”")
    assert "“Tea &lt;i&gt;” (Esc)" in button.toolTip()
    assert "“Tea <i>” is being answered" in [label.text() for label in composer.findChildren(QLabel)]


def test_grows_to_eight_lines(composer: Composer) -> None:
    low = composer.field.height()
    composer.set_text("\n".join("12345"))
    middle = composer.field.height()
    composer.set_text("\n".join("x" * 40))
    assert low < middle < composer.field.height() <= 8 * 20
