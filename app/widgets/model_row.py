"""A model in a list: name, size, verdict, speed, what can be done. Shows a `RowView`, knows nothing else."""

from collections.abc import Callable

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.core.row import RowView
from app.core.tooltip import plain_tooltip
from app.widgets.chip import Chip
from app.widgets.elided_label import ElidedLabel
from app.widgets.theme import Theme

SIZE_PX, CHIP_PX, SPEED_PX, ACTION_PX, MENU_PX = 164, 172, 104, 92, 34
_FULL_PX, _SPEED_FROM_PX = 760, 660  # below these widths the size goes under the name, and the speed into the tooltip


class ModelRow(QFrame):
    opened = Signal(str)  # key: clicked, or Enter on it

    def __init__(
        self, theme: Theme, opened: Callable[[str], object], parent: QWidget | None = None, *, has_menu: bool = True
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "row")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self._theme, self._view = theme, RowView("", "", "", "", "", "muted")
        self._title = ElidedLabel("name", self)
        self._subtitle = ElidedLabel("muted", self)
        self._size = QLabel(self, textFormat=Qt.TextFormat.PlainText)
        self._size.setProperty("kind", "mono-muted")
        self._chip = Chip(theme, self)
        self._speed = QLabel(self, textFormat=Qt.TextFormat.PlainText)
        self._speed.setProperty("kind", "number")
        self._unit = QLabel("tok/s", self)
        self._unit.setProperty("kind", "muted")
        self._button = QPushButton(self)
        self._button.clicked.connect(lambda: self._act(0))
        self._more = QToolButton(self)
        self._more.setText("⋯")
        self._more.setProperty("kind", "ghost")
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self._more)
        self._more.setMenu(self._menu)
        self._more.setVisible(has_menu)
        self.opened.connect(opened)
        self._lay_out()

    def show_item(self, view: RowView) -> None:
        has_changed_menu = [text for text, _ in view.actions] != [text for text, _ in self._view.actions]
        self._view = view
        self._title.set_words(view.title)
        self._size.setText(view.size)
        self._chip.set_words(view.chip, view.chip_color)
        told = f"{view.speed} tokens/s. {view.tooltip}" if view.speed else view.tooltip
        self._chip.setToolTip(plain_tooltip(told))
        self._speed.setText(view.speed or ("" if not view.chip else "—"))
        self._unit.setText("tok/s" if view.speed else "")
        speed = f"{view.speed} tokens per second" if view.speed else ""
        self.setAccessibleName(", ".join(filter(None, (view.title, view.subtitle, view.size, view.chip, speed))))
        self._show_actions(view, has_changed_menu)
        self._arrange()

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), 62)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self.hasFocus() and event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.opened.emit(self._view.key)
        else:
            super().keyPressEvent(event)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self.rect().contains(event.position().toPoint()):
            self.opened.emit(self._view.key)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def _show_actions(self, view: RowView, has_changed_menu: bool) -> None:
        self._button.setVisible(bool(view.actions))
        if view.actions:
            self._button.setText(view.actions[0][0])
            self._button.setAccessibleName(f"{view.actions[0][0]} {view.title}")
        kind = "primary" if view.is_primary else ""
        if self._button.property("kind") != kind:
            self._button.setProperty("kind", kind)
            self._button.style().polish(self._button)
        self._more.setEnabled(len(view.actions) > 1)
        self._more.setText("⋯" if len(view.actions) > 1 else "")
        self._more.setAccessibleName(f"More for {view.title}")
        self._more.setToolTip("More")
        if has_changed_menu:
            self._menu.clear()
            for number, (text, _) in enumerate(view.actions[1:], start=1):
                action = QAction(text, self._menu)
                action.triggered.connect(lambda _=False, number=number: self._act(number))
                self._menu.addAction(action)

    def _act(self, number: int) -> None:
        self._view.actions[number][1]()

    def _arrange(self) -> None:
        is_full = self.width() >= _FULL_PX
        self._size.setVisible(is_full)
        self._speed_box.setVisible(self.width() >= _SPEED_FROM_PX)
        parts = (self._view.size, self._view.subtitle) if not is_full else (self._view.subtitle,)
        self._subtitle.set_words(" · ".join(filter(None, parts)))

    def _lay_out(self) -> None:
        words = QVBoxLayout()
        words.setSpacing(3)
        words.addStretch(1)
        words.addWidget(self._title)
        words.addWidget(self._subtitle)
        words.addStretch(1)
        chip = QWidget(self)
        chip.setFixedWidth(CHIP_PX)
        around = QHBoxLayout(chip)
        around.setContentsMargins(0, 0, 0, 0)
        around.addWidget(self._chip)
        around.addStretch(1)
        self._speed_box = QWidget(self)
        self._speed_box.setFixedWidth(SPEED_PX)
        pair = QHBoxLayout(self._speed_box)
        pair.setContentsMargins(0, 0, 0, 0)
        pair.setSpacing(5)
        pair.addStretch(1)
        pair.addWidget(self._speed)
        pair.addWidget(self._unit)
        self._size.setFixedWidth(SIZE_PX)
        self._button.setFixedWidth(ACTION_PX)
        self._more.setFixedWidth(MENU_PX)
        row = QHBoxLayout(self)
        row.setContentsMargins(18, 11, 10, 11)
        row.setSpacing(12)
        row.addLayout(words, 1)
        for widget in (self._size, chip, self._speed_box):
            row.addWidget(widget)
        row.addSpacing(4)
        row.addWidget(self._button)
        row.addWidget(self._more)
