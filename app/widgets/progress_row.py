"""A download in a list: how far it is, why it stands still, what can be done. Shows values, asks for nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QAction, QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QMenu, QPushButton, QToolButton, QVBoxLayout, QWidget

from app.core.download_words import JobWords
from app.core.problem import Action
from app.core.tooltip import plain_tooltip
from app.widgets.elided_label import ElidedLabel
from app.widgets.theme import Theme
from engine.protocol import DownloadJob

_NAME_PX, _BUTTON_PX = 236, 92


@dataclass(frozen=True, slots=True)
class JobView:
    """`actions`: the first is the button, the others a menu."""

    words: JobWords
    actions: tuple[Action, ...] = ()


class ProgressRow(QFrame):
    def __init__(self, theme: Theme, view_of: Callable[[DownloadJob], JobView], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._view_of = view_of
        self._actions: tuple[Action, ...] = ()
        self._name = ElidedLabel("name", self, Qt.TextElideMode.ElideMiddle)
        self._maker = ElidedLabel("muted", self)
        self._text = QLabel(self, wordWrap=True, textFormat=Qt.TextFormat.PlainText)
        self._text.setProperty("kind", "muted")
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._bar = _Bar(theme, self)
        self._button = QPushButton(self)
        self._button.setFixedWidth(_BUTTON_PX)
        self._button.clicked.connect(lambda: self._act(0))
        self._more = QToolButton(self)
        self._more.setText("⋯")
        self._more.setToolTip("More")
        self._more.setProperty("kind", "ghost")
        self._more.setFixedWidth(34)
        self._more.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self._menu = QMenu(self._more)
        self._more.setMenu(self._menu)
        self._lay_out()

    def show_item(self, job: DownloadJob) -> None:
        view = self._view_of(job)
        maker, _, name = job.repo.rpartition("/")
        self._name.set_words(name)
        self._maker.set_words(maker)
        self._text.setText(view.words.text)
        self._text.setToolTip(plain_tooltip(view.words.detail))
        kind = "bad" if view.words.color == "bad" else "muted"
        if self._text.property("kind") != kind:
            self._text.setProperty("kind", kind)
            self._text.style().polish(self._text)
        self._bar.set_share(view.words.share, view.words.color)
        self.setAccessibleName(f"{job.repo}: {view.words.text}")
        self._show_actions(job, view.actions)

    def _show_actions(self, job: DownloadJob, actions: tuple[Action, ...]) -> None:
        has_changed = [text for text, _ in actions] != [text for text, _ in self._actions]
        self._actions = actions
        if not has_changed:
            return
        self._button.setVisible(bool(actions))
        self._button.setText(actions[0][0] if actions else "")
        self._button.setAccessibleName(f"{self._button.text()} {job.repo}")
        self._more.setVisible(len(actions) > 1)
        self._more.setAccessibleName(f"More for {job.repo}")
        self._menu.clear()
        for number, (text, _) in enumerate(actions[1:], start=1):
            action = QAction(text, self._menu)
            action.triggered.connect(lambda _=False, number=number: self._act(number))
            self._menu.addAction(action)

    def _act(self, number: int) -> None:
        self._actions[number][1]()

    def _lay_out(self) -> None:
        names = QWidget(self)
        names.setFixedWidth(_NAME_PX)
        left = QVBoxLayout(names)
        left.setContentsMargins(0, 0, 0, 0)
        left.setSpacing(2)
        left.addWidget(self._name)
        left.addWidget(self._maker)
        middle = QVBoxLayout()
        middle.setSpacing(6)
        middle.addStretch(1)
        middle.addWidget(self._text)
        middle.addWidget(self._bar)
        middle.addStretch(1)
        row = QHBoxLayout(self)
        row.setContentsMargins(18, 10, 10, 10)
        row.setSpacing(12)
        row.addWidget(names)
        row.addLayout(middle, 1)
        row.addSpacing(8)
        row.addWidget(self._button)
        row.addWidget(self._more)


class _Bar(QWidget):
    """Its words stand above it, so that it needs no name of its own."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme, self._share, self._color = theme, 0.0, "accent"
        self.setFixedHeight(6)

    def set_share(self, share: float | None, color: str) -> None:
        self._share, self._color = share or 0.0, color
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(120, 6)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._theme.palette.raised))
        painter.drawRoundedRect(QRectF(0, 0, self.width(), 6), 3, 3)
        if self._share > 0:
            painter.setBrush(QColor(getattr(self._theme.palette, self._color)))
            painter.drawRoundedRect(QRectF(0, 0, max(6.0, self.width() * self._share), 6), 3, 3)
        painter.end()
