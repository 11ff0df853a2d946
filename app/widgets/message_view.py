"""A conversation of any length: builds only the messages near the visible part and remembers how tall the others are.

Reads `ShownMessage`s from a list model; knows neither the store nor the engine.
"""

from dataclasses import dataclass
from itertools import accumulate

from PySide6.QtCore import QAbstractItemModel, QModelIndex, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QPalette, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QToolButton, QWidget

from app.core.chats import MessageState
from app.core.shown_message import ShownMessage
from app.widgets.message_widget import AnswerMessage, UserMessage
from app.widgets.rich_text import MESSAGE_QSS
from app.widgets.theme import Theme

_MARGIN = 20
_MAX_COLUMN = 860
_GAP = 18
_LINE_PX = 20
_AT_END = 24  # pixels from the end within which new text keeps scrolling
_FAR = 240  # pixels from the end from which on a way back is offered


@dataclass(slots=True)
class _Row:
    shown: ShownMessage
    height: int
    widget: UserMessage | AnswerMessage | None = None


class MessageView(QAbstractScrollArea):
    """Item data under `Qt.UserRole` is a `ShownMessage`."""

    regenerate_requested = Signal(object)  # message id

    def __init__(self, model: QAbstractItemModel, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._model = model
        self._theme = theme
        self._rows: list[_Row] = []
        self._sticks = True  # the person is at the end and wants to stay there
        self._anchor = (0, 0)  # the first visible message and how far into it the view begins; heights change around it
        self._is_placing = False
        self._can_regenerate = True
        self._is_focus_ordered = True
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAccessibleName("Conversation")
        self.setStyleSheet(MESSAGE_QSS)
        self.viewport().setBackgroundRole(QPalette.ColorRole.Window)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.verticalScrollBar().setSingleStep(3 * _LINE_PX)
        self.verticalScrollBar().valueChanged.connect(self._scrolled)
        self._ahead = QTimer(self, interval=16, singleShot=True)
        self._ahead.timeout.connect(self._build_ahead)
        self._to_end = self._make_to_end()
        model.modelReset.connect(self._reset)
        model.rowsInserted.connect(self._insert)
        model.rowsRemoved.connect(self._remove)
        model.dataChanged.connect(self._change)
        theme.changed.connect(self._rebuild)
        QApplication.instance().focusChanged.connect(self._follow_focus)  # type: ignore[union-attr]
        self._reset()

    def _make_to_end(self) -> QToolButton:
        button = QToolButton(self.viewport())
        button.setIcon(self._theme.icon("chevron"))
        button.setToolTip("Go to the end")
        button.setAccessibleName("Go to the end")
        button.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the End key does the same
        button.resize(32, 32)
        button.clicked.connect(self.scroll_to_end)
        button.hide()
        return button

    # What the page calls

    def scroll_to_end(self) -> None:
        self._sticks = True
        self._place()

    def set_can_regenerate(self, can: bool) -> None:
        self._can_regenerate = can
        self._offer_regenerate()
        self._place()

    @property
    def num_built(self) -> int:
        """How many messages exist as widgets now."""
        return sum(row.widget is not None for row in self._rows)

    # The model

    def _shown(self, row: int) -> ShownMessage:
        shown = self._model.data(self._model.index(row, 0), Qt.ItemDataRole.UserRole)
        assert isinstance(shown, ShownMessage), "the model holds ShownMessages"
        return shown

    def _reset(self) -> None:
        for row in self._rows:
            self._drop(row)
        self._rows = [self._estimated(self._shown(row)) for row in range(self._model.rowCount())]
        self._sticks = True
        self._place()

    def _insert(self, parent: QModelIndex, first: int, last: int) -> None:
        self._rows[first:first] = [self._estimated(self._shown(row)) for row in range(first, last + 1)]
        self._offer_regenerate()
        self._place()

    def _remove(self, parent: QModelIndex, first: int, last: int) -> None:
        for row in self._rows[first : last + 1]:
            self._drop(row)
        del self._rows[first : last + 1]
        self._offer_regenerate()
        self._place()

    def _change(self, top_left: QModelIndex, bottom_right: QModelIndex) -> None:
        for number in range(top_left.row(), bottom_right.row() + 1):
            row = self._rows[number]
            row.shown = self._shown(number)
            if row.widget is None:
                row.height = max(row.height, self._estimate(row.shown))
            else:
                row.widget.set_message(row.shown)
                row.widget.set_can_regenerate(self._can_regenerate_row(number))
                self._measure(row)
        self._place()

    # Heights

    def _column(self) -> tuple[int, int]:
        """Left edge and width of the messages; the scroll bar lies in the right margin."""
        width = max(160, min(self.width() - 2 * _MARGIN, _MAX_COLUMN))
        return max(_MARGIN, (self.width() - width) // 2), width

    def _estimate(self, shown: ShownMessage) -> int:
        text = shown.message.content
        per_line = max(20, self._column()[1] // 7)
        lines = text.count("\n") + 1 + len(text) // per_line
        return min(lines, 400) * _LINE_PX + 30

    def _estimated(self, shown: ShownMessage) -> _Row:
        return _Row(shown, self._estimate(shown))

    def _measure(self, row: _Row) -> None:
        assert row.widget is not None, "only built messages are measured"
        row.height = row.widget.relayout(self._column()[1])

    def _tops(self) -> list[int]:
        """Where each message begins, and last where the content ends."""
        return list(accumulate((row.height + _GAP for row in self._rows), initial=_MARGIN))

    # Placing

    def _place(self) -> None:
        """Build what is visible, put it where it belongs, and keep what the person looks at where it is."""
        if self._is_placing:
            return
        self._is_placing = True
        bar = self.verticalScrollBar()
        anchor, offset = self._anchor
        page = self.viewport().height()
        for _ in range(8):  # building tells real heights, which may bring more messages into view
            tops = self._tops()
            bar.setRange(0, max(0, tops[-1] - page))
            bar.setPageStep(page)
            bar.setValue(bar.maximum() if self._sticks else tops[min(anchor, len(self._rows))] + offset)
            if not self._build(tops, bar.value(), bar.value() + page):
                break
        self._move_widgets(self._tops(), bar.value())
        self._anchor = self._looked_at(bar.value())
        self._show_to_end(bar.maximum() - bar.value())
        self._is_placing = False
        self._ahead.start()

    def _looked_at(self, value: int) -> tuple[int, int]:
        """The first message that is at least partly visible, and how far into it the view begins."""
        tops = self._tops()
        for number, _ in enumerate(self._rows):
            if tops[number + 1] > value:
                return number, value - tops[number]
        return max(0, len(self._rows) - 1), 0

    def _build(self, tops: list[int], top: int, bottom: int) -> bool:
        """Build what lies between `top` and `bottom`. True if a height turned out different."""
        is_changed = False
        for number, row in enumerate(self._rows):
            if row.widget is None and tops[number] < bottom and tops[number + 1] > top:
                before = row.height
                self._create(number)
                is_changed |= row.height != before
        return is_changed

    def _create(self, number: int) -> None:
        row = self._rows[number]
        kind = UserMessage if row.shown.message.role == "user" else AnswerMessage
        widget = kind(self._theme.palette, self.viewport())
        widget.resized.connect(lambda: self._remeasure(row))
        if isinstance(widget, AnswerMessage):
            widget.regenerate_requested.connect(lambda: self.regenerate_requested.emit(row.shown.message.id))
        row.widget = widget
        widget.set_message(row.shown)
        widget.set_can_regenerate(self._can_regenerate_row(number))
        self._measure(row)
        self._is_focus_ordered = False

    def _remeasure(self, row: _Row) -> None:
        if row.widget is not None:
            self._measure(row)
            self._sticks = False
            self._place()

    def _move_widgets(self, tops: list[int], value: int) -> None:
        left, width = self._column()
        page = self.viewport().height()
        for number, row in enumerate(self._rows):
            if row.widget is None:
                continue
            top = tops[number] - value
            if (-3 * page < top + row.height and top < 4 * page) or self._must_stay(row):
                row.widget.setGeometry(left, top, width, row.height)
                row.widget.show()
            else:
                self._drop(row)
        self._to_end.raise_()

    def _must_stay(self, row: _Row) -> bool:
        focus = QApplication.focusWidget()
        has_focus = row.widget is not None and focus is not None and row.widget.isAncestorOf(focus)
        return has_focus or row.shown.message.state is MessageState.STREAMING

    def _drop(self, row: _Row) -> None:
        if row.widget is not None:
            row.widget.hide()
            row.widget.deleteLater()
            row.widget = None

    def _build_ahead(self) -> None:
        """One message beyond the visible part at a time, so that scrolling finds it built."""
        tops, value, page = self._tops(), self.verticalScrollBar().value(), self.viewport().height()
        for number, row in enumerate(self._rows):
            if row.widget is None and tops[number] < value + 2 * page and tops[number + 1] > value - page:
                self._create(number)
                self._place()
                return
        if not self._is_focus_ordered:
            self._order_focus()

    # Focus and actions

    def _order_focus(self) -> None:
        """Tab goes through the messages in their order, not in the order in which they were built."""
        self._is_focus_ordered = True
        before: QWidget | None = None
        for row in self._rows:
            for child in row.widget.findChildren(QWidget) if row.widget is not None else ():
                if child.focusPolicy() & Qt.FocusPolicy.TabFocus:
                    if before is not None:
                        QWidget.setTabOrder(before, child)
                    before = child

    def _follow_focus(self, old: QWidget | None, now: QWidget | None) -> None:
        if now is None or not self.viewport().isAncestorOf(now) or not isinstance(now.parentWidget(), QWidget):
            return
        top = now.mapTo(self.viewport(), now.rect().topLeft()).y()
        if top < 0 or top > self.viewport().height() - _LINE_PX:
            self.verticalScrollBar().setValue(self.verticalScrollBar().value() + top - _MARGIN)

    def _can_regenerate_row(self, number: int) -> bool:
        message = self._rows[number].shown.message
        is_last_answer = number == len(self._rows) - 1 and message.role == "assistant"
        return is_last_answer and self._can_regenerate and message.state is not MessageState.STREAMING

    def _offer_regenerate(self) -> None:
        for number, row in enumerate(self._rows):
            if row.widget is not None:
                row.widget.set_can_regenerate(self._can_regenerate_row(number))
                self._measure(row)

    # Events

    def _scrolled(self) -> None:
        if not self._is_placing:
            bar = self.verticalScrollBar()
            self._sticks = bar.value() >= bar.maximum() - _AT_END
            self._anchor = self._looked_at(bar.value())
            self._place()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """Messages are moved by `_place`."""

    def _show_to_end(self, distance: int) -> None:
        viewport = self.viewport()
        self._to_end.move((viewport.width() - self._to_end.width()) // 2, viewport.height() - self._to_end.height() - 8)
        self._to_end.setVisible(distance > _FAR)

    def _rebuild(self) -> None:
        self._to_end.setIcon(self._theme.icon("chevron"))
        for row in self._rows:
            self._drop(row)
        self._place()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.oldSize().width() != event.size().width():
            for row in self._rows:
                if row.widget is None:
                    row.height = self._estimate(row.shown)
                else:
                    self._measure(row)
        self._place()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        bar = self.verticalScrollBar()
        if event.key() == Qt.Key.Key_Home or event.matches(QKeySequence.StandardKey.MoveToStartOfDocument):
            bar.setValue(0)
        elif event.key() == Qt.Key.Key_End or event.matches(QKeySequence.StandardKey.MoveToEndOfDocument):
            self.scroll_to_end()
        else:
            super().keyPressEvent(event)
