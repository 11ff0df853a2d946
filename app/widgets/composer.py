"""Where a message is written: Enter sends, Shift+Enter breaks the line, Esc stops. Knows neither chats nor the engine.

Says by itself why nothing can be sent; the reason comes from outside. What was submitted stays until `clear`.
"""

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QInputMethodEvent, QKeyEvent, QMouseEvent, QResizeEvent, QTextOption
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QTextEdit, QVBoxLayout, QWidget

from app.core.figures import format_count, format_tokens_short
from app.core.tooltip import plain_tooltip
from app.widgets.theme import Theme, ui_font

_MAX_LINES = 8
_LINE_PX = 20


class Composer(QFrame):
    submitted = Signal(str)
    stopped = Signal()

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._reason = ""
        self._is_generating = False
        self._where = ""
        self._edit = _MessageEdit(self)
        self._hint, self._context = QLabel(self), QLabel(self)
        for label in (self._hint, self._context):
            label.setProperty("kind", "faint")
            label.setTextFormat(Qt.TextFormat.PlainText)
        self._button = QPushButton("Send", self)
        self._button.setIconSize(QSize(16, 16))
        self._button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setProperty("kind", "card")
        self._lay_out()
        self._edit.submitted.connect(self._submit)
        self._edit.stopped.connect(self._stop)
        self._edit.textChanged.connect(self._show_button)
        self._edit.focused.connect(lambda _: self._dress())
        self._button.clicked.connect(self._click)
        theme.changed.connect(self._dress)
        self.set_model("")
        self._dress()

    def _lay_out(self) -> None:
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._hint, 1)
        row.addWidget(self._context)
        row.addWidget(self._button)
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 12, 14, 10)
        column.setSpacing(8)
        column.addWidget(self._edit)
        column.addLayout(row)

    # What the page tells

    def set_model(self, name: str) -> None:
        self._edit.setPlaceholderText(f"Message {name}" if name else "Message")
        self._edit.setAccessibleName(f"Message to {name}" if name else "Message")

    def set_blocked(self, reason: str) -> None:
        """Why nothing can be sent, in a few words; "" when it can. Writing stays possible."""
        self._reason = reason
        self._show_button()

    def set_generating(self, is_generating: bool, where: str = "") -> None:
        """`where` names the chat that is being answered when it is another one."""
        self._is_generating, self._where = is_generating, where
        self._show_button()

    def set_context(self, used: int | None, size: int) -> None:
        """Tokens. `used` may be unknown; a size of 0 is unknown and not shown."""
        share = f"{format_tokens_short(used)} of " if used is not None else ""
        self._context.setText(f"{share}{format_tokens_short(size)} context" if size else "")
        self._context.setToolTip(f"The model can see {format_count(size, 'token')} at once" if size else "")

    def set_text(self, text: str) -> None:
        self._edit.setPlainText(text)
        self._edit.moveCursor(self._edit.textCursor().MoveOperation.End)

    def clear(self) -> None:
        """What was submitted is safe."""
        self._edit.clear()

    @property
    def text(self) -> str:
        return self._edit.toPlainText()

    @property
    def field(self) -> QWidget:
        """What takes the keyboard."""
        return self._edit

    def focus(self) -> None:
        self._edit.setFocus()

    # What the person does

    def _submit(self) -> None:
        text = self.text.strip()
        if text and not self._reason and not self._is_generating:
            self.submitted.emit(text)

    def _stop(self) -> None:
        if self._is_generating:
            self.stopped.emit()

    def _click(self) -> None:
        if self._is_generating:
            self.stopped.emit()
        else:
            self._submit()
        self._edit.setFocus()

    def _show_button(self) -> None:
        can_send = bool(self.text.strip()) and not self._reason
        kind = "" if self._is_generating else "primary"
        if self._button.property("kind") != kind:
            self._button.setProperty("kind", kind)
            self._button.style().unpolish(self._button)
            self._button.style().polish(self._button)
        self._button.setText("Stop" if self._is_generating else "Send")
        self._button.setEnabled(self._is_generating or can_send)
        stop = f"Stop the answer in {self._where}" if self._where else "Stop this answer"
        tip = f"{stop} (Esc)" if self._is_generating else self._reason or "Send (Enter)"
        self._button.setToolTip(plain_tooltip(tip))
        self._button.setAccessibleName(stop if self._is_generating else "Send the message")
        self._hint.setText(self._reason)
        self._show_icon()

    def _show_icon(self) -> None:
        palette = self._theme.palette
        color = palette.text if self._is_generating else palette.on_accent if self._button.isEnabled() else palette.faint
        self._button.setIcon(self._theme.icon("stop" if self._is_generating else "send", color))

    def _dress(self) -> None:
        palette = self._theme.palette
        border = palette.faint if self._edit.hasFocus() else palette.line  # the cursor shows the focus too
        self.setStyleSheet(
            f'Composer {{ background: {palette.surface}; border: 1px solid {border}; border-radius: 12px; }}'
            "QTextEdit { border: none; padding: 0; background: transparent; }"
        )  # fmt: skip
        self._show_icon()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._edit.setFocus()


class _MessageEdit(QTextEdit):
    """Grows with its text up to `_MAX_LINES`."""

    submitted = Signal()
    stopped = Signal()
    focused = Signal(bool)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._is_composing = False  # an input method shows text that is not decided yet
        self.setAcceptRichText(False)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFont(ui_font())
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.document().setDocumentMargin(0)
        self.textChanged.connect(self._grow)
        self._grow()

    def _grow(self) -> None:
        wanted = max(2 * _LINE_PX, round(self.document().size().height()) + 4)
        height = min(wanted, _MAX_LINES * _LINE_PX)
        if height != self.height():
            self.setFixedHeight(height)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._grow()

    def inputMethodEvent(self, event: QInputMethodEvent) -> None:
        self._is_composing = bool(event.preeditString())
        super().inputMethodEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        is_enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        has_shift = bool(event.modifiers() & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.AltModifier))
        if is_enter and not has_shift and not self._is_composing:
            self.submitted.emit()
        elif event.key() == Qt.Key.Key_Escape and not self._is_composing:
            self.stopped.emit()
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.focused.emit(True)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.focused.emit(False)
