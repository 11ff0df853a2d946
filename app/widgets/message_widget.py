"""One message: the person's as a bubble, an answer over the full width with its thought, state, figures and actions.

Places its own children, because the list asks for heights before anything is shown. Knows nothing of other messages.
"""

from PySide6.QtCore import QEvent, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QEnterEvent, QGuiApplication, QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QPushButton, QWidget

from app.core.chats import MessageState
from app.core.shown_message import ShownMessage, call_words, figures, state_in_words, thought_label
from app.widgets.answer_pieces import AnswerPieces
from app.widgets.folded_block import FoldedBlock
from app.widgets.palette import Palette
from app.widgets.rich_text import RichText

_BUBBLE_SHARE = 0.86
_BUBBLE_PADDING = (14, 10)
_LINE_BIAS = 2  # pixels by which the line spacing raises a text above the middle
_LONG_TEXT = 4000  # characters of a pasted text that open unfolded
_FOOTER = 24


class UserMessage(QWidget):
    resized = Signal()

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self._palette = palette
        self._content = ""
        self._is_folded = False
        self._bubble = QRectF()
        self._text = RichText(palette, palette.text, self)
        self._text.setAccessibleName("Your message")
        self._copy = QuietButton("Copy", "Copy this message", self)
        self._copy.clicked.connect(lambda: _copy(self._copy, self._content))
        self._unfold = QPushButton("Show all of it", self)
        self._unfold.setProperty("kind", "ghost")
        self._unfold.clicked.connect(self._show_all)
        self._unfold.hide()

    def set_message(self, shown: ShownMessage) -> None:
        if shown.message.content == self._content:
            return
        self._content = shown.message.content
        self._is_folded = len(self._content) > _LONG_TEXT
        self._show()

    def set_can_regenerate(self, can: bool) -> None:
        """The person's own message has nothing to regenerate."""

    def _show(self) -> None:
        self._unfold.setVisible(self._is_folded)
        self._text.set_plain(self._content[:_LONG_TEXT] + "…" if self._is_folded else self._content)

    def _show_all(self) -> None:
        self._is_folded = False
        self._show()
        self.resized.emit()

    def relayout(self, width: int) -> int:
        across, down = _BUBBLE_PADDING
        text_width = max(40, self._text.ideal_width(int(width * _BUBBLE_SHARE) - 2 * across))
        text_height = self._text.height_for(text_width)
        left = width - text_width - 2 * across
        height = text_height + 2 * down
        self._text.setGeometry(left + across, down + _LINE_BIAS, text_width, text_height)
        if self._is_folded:
            self._unfold.setGeometry(left + across - 8, height - 6, self._unfold.sizeHint().width(), 28)
            height += 26
        self._bubble = QRectF(left, 0, text_width + 2 * across, height)
        size = self._copy.sizeHint()
        self._copy.setGeometry(left - size.width() - 4, 6, size.width(), 24)
        self.update()
        return height

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(self._palette.raised))
        painter.drawRoundedRect(self._bubble, 12, 12)
        painter.end()

    def enterEvent(self, event: QEnterEvent) -> None:
        self._copy.set_shown(True)

    def leaveEvent(self, event: QEvent) -> None:
        self._copy.set_shown(False)


class AnswerMessage(QWidget):
    resized = Signal()
    regenerate_requested = Signal()

    def __init__(self, palette: Palette, parent: QWidget) -> None:
        super().__init__(parent)
        self._palette = palette
        self._answer = ""
        self._pieces = AnswerPieces(self, palette, palette.text, self.resized.emit)
        tip = "Show or hide what the model thought first"
        self._thought = FoldedBlock(palette, "What the model thought", tip, self)
        self._thought.folded.connect(self.resized)
        self._thought.hide()
        self._calls: list[FoldedBlock] = []
        self._error = _label("bad", self)
        self._error.setWordWrap(True)
        self._error.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._figures = _label("faint", self)
        self._state = _label("faint", self)
        self._copy = QuietButton("Copy", "Copy this answer", self)
        self._copy.clicked.connect(lambda: _copy(self._copy, self._answer))
        self._again = QuietButton("Regenerate", "Answer again, in place of this one", self)
        self._again.clicked.connect(self.regenerate_requested)
        self._again.hide()

    def set_message(self, shown: ShownMessage) -> None:
        message = shown.message
        is_open = message.state is MessageState.STREAMING
        is_thinking = is_open and not message.content and not message.calls
        self._answer = message.content
        label = thought_label(is_thinking, shown.thought_seconds, message.thought)
        self._thought.set_text(label, message.thought, is_growing=is_thinking)
        self._thought.setVisible(bool(message.thought))
        self._pieces.set_text(self._answer, is_growing=is_open)
        self._pieces.set_caret(is_open)
        self._show_calls(message.calls)
        self._show_state(shown)

    def _show_calls(self, calls: tuple[str, ...]) -> None:
        while len(self._calls) < len(calls):
            tip = "Show or hide what the tool would be given. Stoker runs no tools."
            block = FoldedBlock(self._palette, "Arguments of the call", tip, self)
            block.folded.connect(self.resized)
            block.show()
            self._calls.append(block)
        while len(self._calls) > len(calls):
            self._calls.pop().deleteLater()
        for block, call in zip(self._calls, calls, strict=True):
            block.set_text(*call_words(call), is_growing=False)

    def _show_state(self, shown: ShownMessage) -> None:
        message = shown.message
        is_failed = message.state is MessageState.FAILED
        self._error.setText(message.stats.stop_reason if is_failed and message.stats else "")
        self._error.setVisible(bool(self._error.text()))
        parts = figures(message.stats)
        words = state_in_words(shown)
        self._figures.setText("   ·   ".join((*parts, "")) if words else "   ·   ".join(parts))
        self._state.setText(words)
        color = {MessageState.STREAMING: self._palette.accent, MessageState.FAILED: self._palette.bad}.get(
            message.state, self._palette.warn if message.state is MessageState.INTERRUPTED else self._palette.faint
        )
        _set_color(self._state, color)
        self._copy.setVisible(message.state is not MessageState.STREAMING)
        self.setAccessibleName(f"Answer by {message.stats.model}" if message.stats and message.stats.model else "Answer")

    def set_can_regenerate(self, can: bool) -> None:
        self._again.setVisible(can)

    def relayout(self, width: int) -> int:
        top = 0
        if self._thought.isVisibleTo(self):
            height = self._thought.relayout(width)
            self._thought.setGeometry(0, 0, width, height)
            top = height + 10
        if self._pieces.widgets:
            top = self._pieces.place(0, top, width) + 4
        for block in self._calls:
            height = block.relayout(width)
            block.setGeometry(0, top + 4, width, height)
            top += height + 8
        if self._error.isVisibleTo(self):
            height = self._error.heightForWidth(width)
            self._error.setGeometry(0, top, width, height)
            top += height + 4
        self._place_footer(top, width)
        return top + _FOOTER

    def _place_footer(self, top: int, width: int) -> None:
        figures_width = self._figures.sizeHint().width() if self._figures.text() else 0
        self._figures.setGeometry(0, top, figures_width, _FOOTER)
        self._state.setGeometry(figures_width, top, self._state.sizeHint().width(), _FOOTER)
        right = width
        for button in (self._again, self._copy):
            if button.isVisibleTo(self):
                right -= button.sizeHint().width()
                button.setGeometry(right, top, button.sizeHint().width(), _FOOTER)
                right -= 4

    def enterEvent(self, event: QEnterEvent) -> None:
        self._copy.set_shown(True)
        self._again.set_shown(True)

    def leaveEvent(self, event: QEvent) -> None:
        self._copy.set_shown(False)
        self._again.set_shown(False)


class QuietButton(QPushButton):
    """An action that shows itself only while the pointer is near or the keyboard is on it, yet is always reachable."""

    def __init__(self, text: str, name: str, parent: QWidget) -> None:
        super().__init__(text, parent)
        self._is_shown = False
        self.setProperty("kind", "ghost")
        self.setAccessibleName(name)
        self.setToolTip(name)

    def set_shown(self, shown: bool) -> None:
        self._is_shown = shown
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._is_shown or self.hasFocus():
            super().paintEvent(event)


def _label(kind: str, parent: QWidget) -> QLabel:
    label = QLabel(parent)
    label.setProperty("kind", kind)
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label


def _set_color(label: QLabel, color: str) -> None:
    sheet = f"color: {color}; font-size: 11px;"
    if label.styleSheet() != sheet:
        label.setStyleSheet(sheet)


def _copy(button: QPushButton, text: str) -> None:
    QGuiApplication.clipboard().setText(text)
    before = button.text()
    button.setText("Copied")
    QTimer.singleShot(1500, button, lambda: button.setText(before))
