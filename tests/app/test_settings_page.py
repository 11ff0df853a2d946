"""The generated page: an editor for each declared setting, refusing what does not fit."""

from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QDoubleSpinBox, QLabel, QLineEdit, QSpinBox, QWidget
from pytestqt.qtbot import QtBot

from app.core.settings import Settings
from app.pages.services import Services
from app.pages.settings import SettingsPage


@pytest.fixture
def page(qtbot: QtBot, qapp: QApplication, services: Services) -> Iterator[SettingsPage]:
    services.theme.apply(qapp)
    page = SettingsPage(services)
    qtbot.addWidget(page)
    page.resize(720, 480)
    page.show()
    yield page
    qapp.setStyleSheet("")


def editor(page: SettingsPage, label: str) -> QWidget:
    found = [widget for widget in page.findChildren(QWidget) if widget.accessibleName() == label]
    assert len(found) == 1, f"{len(found)} editors are called {label!r}"
    return found[0]


def test_every_shown_setting_has_one_editor_and_no_hidden_one_has(page: SettingsPage) -> None:
    named = {widget.accessibleName() for widget in page.findChildren(QWidget)} - {""}
    assert {setting.label for setting in Settings.declarations() if setting.label} <= named


def test_choice_is_stored(page: SettingsPage, services: Services) -> None:
    theme = editor(page, "Theme")
    assert isinstance(theme, QComboBox)
    theme.setCurrentIndex(theme.findData("dark"))
    theme.activated.emit(theme.currentIndex())
    assert services.settings.theme == "dark"


def test_numbers_can_be_read(page: SettingsPage) -> None:
    """Under a style sheet a spin box can shrink its text field to a pixel."""
    for spin in (*page.findChildren(QSpinBox), *page.findChildren(QDoubleSpinBox)):
        field = spin.findChild(QLineEdit)
        assert isinstance(field, QLineEdit)
        assert field.width() > field.fontMetrics().horizontalAdvance(field.text())


def test_numbers_are_stored_within_their_limits(qtbot: QtBot, page: SettingsPage, services: Services) -> None:
    temperature = editor(page, "Temperature")
    assert isinstance(temperature, QDoubleSpinBox)
    temperature.setValue(99)
    assert services.settings.temperature == 2.0
    longest = editor(page, "Longest answer")
    assert isinstance(longest, QSpinBox)
    longest.setFocus()
    longest.selectAll()
    QTest.keyClicks(longest, "77")
    assert services.settings.max_tokens == 1024  # not while typing
    QTest.keyClick(longest, Qt.Key.Key_Return)
    assert services.settings.max_tokens == 77


@pytest.mark.parametrize(
    ("label", "typed", "stored"),
    [
        ("Temperature", "9.5", "2"),
        ("Temperature", "-3", "0"),
        ("Longest answer", "0", "1"),
        ("Longest answer", "5,000,000", "1,048,576"),
    ],
)
def test_a_number_out_of_range_becomes_the_nearest_bound(page: SettingsPage, label: str, typed: str, stored: str) -> None:
    number = editor(page, label)
    assert isinstance(number, QSpinBox | QDoubleSpinBox)
    number.setFocus()
    number.selectAll()
    QTest.keyClicks(number, typed)
    assert number.text() == typed, "what is typed stays to be seen until it is finished"
    QTest.keyClick(number, Qt.Key.Key_Return)
    assert number.text().removesuffix(".00") == stored


def test_ranges_are_written_beside_the_numbers(page: SettingsPage) -> None:
    texts = [label.text() for label in page.findChildren(QLabel)]
    assert "0 always takes the likeliest token; higher is more varied. 0 to 2." in texts
    assert editor(page, "Longest answer").accessibleDescription().endswith(" 1 to 1,048,576.")


@pytest.mark.parametrize(("label", "key"), [("Memory for experts", "expert_ram"), ("Graphics memory", "vram_limit")])
def test_text_that_does_not_fit_is_marked_and_not_stored(page: SettingsPage, services: Services, label: str, key: str) -> None:
    memory = editor(page, label)
    assert isinstance(memory, QLineEdit)
    memory.setText("most of it")
    memory.editingFinished.emit()
    problems = [label for label in page.findChildren(QLabel) if label.property("kind") == "bad" and label.isVisible()]
    assert [label.text()[:22] for label in problems] == ["Write an amount such a"]
    assert memory.property("bad") is True
    assert services.settings.get(key) == ""
    memory.setText(" 30% ")
    memory.editingFinished.emit()
    assert not problems[0].isVisible()
    assert services.settings.get(key) == "30%"


def test_graphics_memory_stands_beside_the_memory_for_experts_and_says_what_it_takes(page: SettingsPage) -> None:
    fields = [widget for widget in page.findChildren(QLineEdit) if widget.accessibleName()]
    names = [field.accessibleName() for field in fields]
    place = names.index("Graphics memory")
    assert names[place - 1] == "Memory for experts"
    assert fields[place].placeholderText() == "Automatic, 8GB, 50% or 0 for none"
    room = fields[place].width() - 2 * 10
    assert fields[place].fontMetrics().horizontalAdvance(fields[place].placeholderText()) <= room, "it can be read"


def test_wheel_over_an_editor_scrolls_the_page_instead(qapp: QApplication, page: SettingsPage, services: Services) -> None:
    temperature = editor(page, "Temperature")
    middle = QPointF(temperature.rect().center())
    wheel = QWheelEvent(
        middle, QPointF(temperature.mapToGlobal(middle.toPoint())), QPoint(0, 120), QPoint(0, 120),
        Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier, Qt.ScrollPhase.NoScrollPhase, False,
    )  # fmt: skip
    qapp.sendEvent(temperature, wheel)
    assert services.settings.temperature == 0.7
