"""A block of code as a card: language, Copy, the text with its colours. Knows nothing of Markdown around it.

Long blocks open folded. Colours come in slices between events, because a lexer can take longer than a frame.
"""

from collections.abc import Iterator
from itertools import islice

from PySide6.QtCore import QEvent, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QGuiApplication,
    QPainter,
    QPaintEvent,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextLayout,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QTextEdit, QWidget

from app.core.highlight import Role, highlight
from app.core.markdown import Code
from app.widgets.palette import Palette
from app.widgets.theme import mono_font

_HEADER = 30
_PADDING = 12
_FOLD_ABOVE, _FOLDED_LINES = 100, 60
_TOKENS_PER_SLICE = 150  # about 3 ms of lexing and formatting
_COPIED_MS = 1500
_LINE_PERCENT = 135.0


class CodeBlock(QWidget):
    resized = Signal()

    def __init__(self, palette: Palette, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._code = Code("", "", closed=False)
        self._shown = ""
        self._is_folded = False
        self._tokens: Iterator[tuple[int, int, Role]] | None = None
        self._formats = _formats(palette)
        self._label = QLabel(self)
        self._label.setProperty("kind", "muted")
        self._label.setTextFormat(Qt.TextFormat.PlainText)
        self._copy = _small_button("Copy", "Copy this code", self)
        self._copy.clicked.connect(self._copy_text)
        self._unfold = _small_button("", "Show the whole code", self)
        self._unfold.clicked.connect(self.unfold)
        self._unfold.hide()
        self._body = _CodeText(self)
        self._slices = QTimer(self, interval=8)
        self._slices.timeout.connect(self._color_slice)
        self._copied = QTimer(self, interval=_COPIED_MS, singleShot=True)
        self._copied.timeout.connect(lambda: self._copy.setText("Copy"))

    def set_code(self, code: Code) -> None:
        if code == self._code:
            return
        if not self._code.text and code.closed:
            self._is_folded = code.text.count("\n") + 1 > _FOLD_ABOVE
        self._code = code
        self._label.setText(code.lang or "text")
        self._body.setAccessibleName(f"Code, {code.lang or 'text'}")
        self._show_text()

    def unfold(self) -> None:
        """Show every line."""
        self._is_folded = False
        self._show_text()
        self.resized.emit()

    def _show_text(self) -> None:
        lines = self._code.text.split("\n")
        self._unfold.setVisible(self._is_folded)
        self._unfold.setText(f"Show all {len(lines):,} lines".replace(",", "\u202f"))
        text = "\n".join(lines[:_FOLDED_LINES]) if self._is_folded else self._code.text
        self._body.set_text(text, self._shown)
        self._shown = text
        if self._code.closed:
            self._tokens = highlight(text, self._code.lang)
            self._slices.start()

    def _color_slice(self) -> None:
        tokens = list(islice(self._tokens or (), _TOKENS_PER_SLICE))
        if len(tokens) < _TOKENS_PER_SLICE:
            self._slices.stop()
            self._tokens = None
        self._body.color(tokens, self._formats)

    def _copy_text(self) -> None:
        QGuiApplication.clipboard().setText(self._code.text)
        self._copy.setText("Copied")
        self._copied.start()

    def height_for(self, width: int) -> int:
        self._label.setGeometry(_PADDING, 1, width // 2, _HEADER - 2)
        size = self._copy.sizeHint()
        self._copy.setGeometry(width - size.width() - 4, 3, size.width(), _HEADER - 6)
        body = self._body.height_for(width - 2 * _PADDING)
        self._body.setGeometry(_PADDING, _HEADER + _PADDING, width - 2 * _PADDING, body)
        height = _HEADER + body + 2 * _PADDING
        if self._is_folded:
            self._unfold.setGeometry(4, height - 6, width - 8, 28)
            height += 26
        return height

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(self._palette.line))
        painter.setBrush(QColor(self._palette.surface))
        painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 8, 8)
        painter.fillRect(QRectF(1, _HEADER, self.width() - 2, 1), QColor(self._palette.line))
        painter.end()


class _CodeText(QTextEdit):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setReadOnly(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setLineWrapMode(QTextEdit.LineWrapMode.NoWrap)
        self.setWordWrapMode(QTextOption.WrapMode.NoWrap)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.setTabChangesFocus(True)
        self.viewport().setAutoFillBackground(False)
        document = self.document()
        document.setDocumentMargin(0)
        document.setUndoRedoEnabled(False)
        document.setDefaultFont(mono_font(12))
        self.setFont(mono_font(12))

    def set_text(self, text: str, before: str) -> None:
        """Show `text`. What it shares with `before`, the text shown now, stays laid out."""
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        cursor.movePosition(QTextCursor.MoveOperation.End)
        if before and text.startswith(before):
            cursor.insertText(text[len(before) :])
        else:
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.removeSelectedText()
            line = QTextBlockFormat()
            line.setLineHeight(_LINE_PERCENT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
            cursor.setBlockFormat(line)
            cursor.insertText(text)
        cursor.endEditBlock()

    def color(self, tokens: list[tuple[int, int, Role]], formats: dict[Role, QTextCharFormat]) -> None:
        """Add colours to `tokens`, each (start, length, role). They lie over the text and do not change it."""
        document = self.document()
        added: dict[int, list[QTextLayout.FormatRange]] = {}
        for start, length, role in tokens:
            block = document.findBlock(start)
            end = start + length
            while block.isValid() and block.position() < end:
                item = QTextLayout.FormatRange()
                item.start = max(0, start - block.position())
                item.length = min(end - block.position(), block.length() - 1) - item.start
                item.format = formats[role]
                added.setdefault(block.blockNumber(), []).append(item)
                block = block.next()
        for number, items in added.items():
            block = document.findBlockByNumber(number)
            layout = block.layout()
            if layout is not None:
                layout.setFormats([*layout.formats(), *items])
        if tokens:
            document.markContentsDirty(tokens[0][0], tokens[-1][0] + tokens[-1][1] - tokens[0][0])

    def height_for(self, width: int) -> int:
        self.resize(width, self.height())
        size = self.document().size()
        bar = self.horizontalScrollBar().sizeHint().height() + 2 if size.width() > width else 0
        return round(size.height() + 0.49) + bar

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.FontChange:
            self.document().setDefaultFont(mono_font(12))

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Sideways scrolls the code, up and down the conversation."""
        if abs(event.angleDelta().x()) > abs(event.angleDelta().y()):
            super().wheelEvent(event)
        else:
            event.ignore()


def _small_button(text: str, name: str, parent: QWidget) -> QPushButton:
    button = QPushButton(text, parent)
    button.setProperty("kind", "ghost")
    button.setAccessibleName(name)
    button.setToolTip(name)
    return button


def _formats(palette: Palette) -> dict[Role, QTextCharFormat]:
    colors = {
        Role.KEYWORD: palette.disk, Role.STRING: palette.ram, Role.NUMBER: palette.vram,
        Role.COMMENT: palette.muted, Role.NAME: palette.text,
    }  # fmt: skip
    formats = {}
    for role, color in colors.items():
        formats[role] = QTextCharFormat()
        formats[role].setForeground(QColor(color))
    return formats
