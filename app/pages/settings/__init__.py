"""The settings page: one row per declaration in `app.core.settings`. Knows no setting by name."""

from itertools import groupby
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from app.core.settings import Setting
from app.pages.services import Services
from app.pages.settings.editors import make_editor
from app.widgets.text_label import text_label

_COLUMN_PX = 680
_EDITOR_PX = 264


class SettingsPage(QWidget):
    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        column = QVBoxLayout()
        column.setContentsMargins(24, 20, 24, 24)
        column.setSpacing(8)
        column.addWidget(text_label("Settings", "title"))
        shown = [setting for setting in services.settings.declarations() if setting.label]
        for group, settings in groupby(shown, key=lambda setting: setting.group):
            column.addSpacing(8)
            column.addWidget(text_label(group, "heading"))
            column.addWidget(self._card(list(settings)))
        column.addSpacing(8)
        where = text_label(f"Chats and settings are kept in {services.paths.data}", "faint")
        where.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        column.addWidget(where)
        column.addStretch(1)
        self._scroll(column)

    def _scroll(self, column: QVBoxLayout) -> None:
        """The column in the middle of a scroll area, never wider than a comfortable line."""
        inner = QWidget()
        inner.setMaximumWidth(_COLUMN_PX)
        inner.setLayout(column)
        page = QWidget()
        page.setProperty("kind", "page")
        centre = QHBoxLayout(page)
        centre.setContentsMargins(0, 0, 0, 0)
        centre.addStretch(1)
        centre.addWidget(inner, 100)
        centre.addStretch(1)
        area = QScrollArea(self, widgetResizable=True)
        area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        area.setWidget(page)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(area)

    def _card(self, settings: list[Setting[Any]]) -> QFrame:
        card = QFrame()
        card.setProperty("kind", "card")
        rows = QVBoxLayout(card)
        rows.setContentsMargins(16, 8, 16, 8)
        for number, setting in enumerate(settings):
            if number:
                divider = QFrame()
                divider.setProperty("kind", "divider")
                rows.addWidget(divider)
            rows.addLayout(self._row(setting))
        return card

    def _row(self, setting: Setting[Any]) -> QHBoxLayout:
        problem = text_label("", "bad")
        problem.hide()

        def store(value: Any) -> bool:
            sentence = setting.problem(value)
            problem.setText(sentence)
            problem.setVisible(bool(sentence))
            if not sentence:
                self._services.settings.set(setting.key, value)
            return not sentence

        editor = make_editor(setting, self._services.settings.get(setting.key), store)
        editor.setFixedWidth(_EDITOR_PX)
        editor.setAccessibleName(setting.label)
        editor.setAccessibleDescription(help_text(setting))
        name = text_label(setting.label)
        name.setBuddy(editor)
        words = QVBoxLayout()
        words.setSpacing(2)
        words.addWidget(name)
        words.addWidget(text_label(help_text(setting), "muted"))
        words.addWidget(problem)
        row = QHBoxLayout()
        row.setContentsMargins(0, 6, 0, 6)
        row.setSpacing(16)
        row.addLayout(words, 1)
        row.addWidget(editor, 0, Qt.AlignmentFlag.AlignVCenter)
        return row


def help_text(setting: Setting[Any]) -> str:
    """What it is for, and the numbers that it takes."""
    if setting.between is None:
        return setting.description
    low, high = (f"{bound:,}".removesuffix(".0") for bound in setting.between)
    return f"{setting.description} {low} to {high}."
