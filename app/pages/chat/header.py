"""Above the conversation: its title, the model with a menu of others, the switch of the meter. Asks for changes only."""

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QPushButton, QToolButton, QWidget

from app.core.figures import format_bytes
from app.core.tooltip import plain_tooltip
from app.pages.chat.reasoning_chip import ReasoningChip
from app.widgets.theme import Theme
from engine.protocol import ModelEntry

_HEIGHT = 52
_LONGEST_CHIP = 22  # characters


class ChatHeader(QFrame):
    model_chosen = Signal(str)
    folder_wanted = Signal()  # a model from elsewhere
    models_wanted = Signal()  # the list is about to be shown
    reload_wanted = Signal()  # the current model once more
    list_toggled = Signal()
    meter_toggled = Signal(bool)

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._title_text = ""
        self._shown_models: tuple[tuple[ModelEntry, ...], str, str, bool] | None = None
        self.setFixedHeight(_HEIGHT)
        self._fold = QToolButton(self)
        self._fold.setProperty("kind", "ghost")
        self._fold.setIconSize(QSize(20, 20))
        self._fold.setToolTip("Show or hide the chats")
        self._fold.setAccessibleName("Chats")
        self._fold.clicked.connect(self.list_toggled)
        self._title = QLabel(self)
        self._title.setTextFormat(Qt.TextFormat.PlainText)
        self._title.setStyleSheet("font-weight: 600;")
        self._title.setMinimumWidth(40)
        self._chip = QPushButton(self)
        self._chip.setProperty("kind", "chip")
        self._menu = QMenu(self._chip)
        self._menu.setToolTipsVisible(True)
        self._menu.aboutToShow.connect(self.models_wanted)
        self._chip.setMenu(self._menu)
        self.reasoning = ReasoningChip(self)
        self._meter = QPushButton("Meter", self)
        self._meter.setCheckable(True)
        self._meter.setToolTip("Show or hide the meter (Ctrl+M)")
        self._meter.toggled.connect(self.meter_toggled)
        row = QHBoxLayout(self)
        row.setContentsMargins(20, 0, 20, 0)
        row.setSpacing(12)
        row.addWidget(self._fold)
        row.addWidget(self._title, 1)
        row.addWidget(self._chip)
        row.addWidget(self.reasoning)
        row.addWidget(self._meter)
        theme.changed.connect(self._paint_icons)
        self._paint_icons()
        self.set_model("", is_loading=False)

    def set_title(self, title: str) -> None:
        self._title_text = title
        self._title.setToolTip(plain_tooltip(title))
        self._elide()

    def set_model(self, name: str, *, is_loading: bool) -> None:
        short = name if len(name) <= _LONGEST_CHIP else f"{name[: _LONGEST_CHIP - 1]}…"
        self._chip.setText(f"{short or 'No model'} ▾".replace("&", "&&"))
        tip = f"{name or 'No model'}{' is being loaded' if is_loading else ''}. Click to choose another."
        self._chip.setToolTip(plain_tooltip(tip))
        self._chip.setAccessibleName(f"Model: {name or 'none'}")

    def set_has_looked(self, has_looked: bool) -> None:
        """Before, "No model" would be too early."""
        self._chip.setVisible(has_looked)

    def set_models(self, models: Sequence[ModelEntry], current: str, folder: str, *, can_reload: bool) -> None:
        """`current` is a name of the list, or a folder."""
        shown = (tuple(models), current, folder, can_reload)
        if shown == self._shown_models:
            return  # the list is asked for each time the menu opens, and must not be rebuilt under the pointer
        self._shown_models = shown
        self._menu.clear()
        for model in models:
            self._add_model(model, current)
        if models:
            self._menu.addSeparator()
        if current:
            again = self._menu.addAction(f"Reload {Path(current).name}".replace("&", "&&"), self.reload_wanted.emit)
            again.setEnabled(can_reload)
            again.setToolTip("Load it again, with the settings of now")
        note = self._menu.addAction(f"Models are kept in {folder}" if folder else "Waiting for the engine")
        note.setEnabled(False)
        self._menu.addAction("Open a model folder…", self.folder_wanted.emit)

    def _add_model(self, model: ModelEntry, current: str) -> None:
        text = f"{model.name}: {model.problem}" if model.problem else f"{model.name}\t{format_bytes(model.bytes)}"
        action = self._menu.addAction(text.replace("&", "&&"))
        action.setEnabled(not model.problem)
        action.setCheckable(True)
        action.setChecked(model.name == current)
        action.setToolTip(plain_tooltip(model.problem or model.path))

        def choose() -> None:
            action.setChecked(model.name == current)  # a click has turned the mark; it follows what is loaded
            self.model_chosen.emit(model.name)

        action.triggered.connect(choose)

    def set_meter_visible(self, visible: bool) -> None:
        self._meter.setChecked(visible)

    def set_can_fold(self, can: bool) -> None:
        self._fold.setVisible(can)

    def _elide(self) -> None:
        width = max(0, self._title.width())
        self._title.setText(self._title.fontMetrics().elidedText(self._title_text, Qt.TextElideMode.ElideRight, width))

    def _paint_icons(self) -> None:
        self._fold.setIcon(self._theme.icon("chat"))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        layout = self.layout()
        if layout is not None:
            layout.activate()
        self._elide()
