"""A read-only, selectable text that is as tall as its contents. Takes Markdown blocks or plain text; loads nothing by itself.

A link opens in the browser when it is clicked, and only then.
"""

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QMimeData, QRect, QRectF, Qt, QUrl
from PySide6.QtGui import (
    QColor,
    QDesktopServices,
    QFontMetricsF,
    QPainter,
    QPaintEvent,
    QTextBlock,
    QTextCursor,
    QTextOption,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QTextBrowser, QWidget

from app.core.markdown import Block, Table, is_safe_link
from app.widgets.block_writer import INDENT, QUOTE_PROPERTY, QUOTE_STEP, RULE_PROPERTY, BlockWriter
from app.widgets.palette import Palette
from app.widgets.theme import mono_font, ui_font

# For an ancestor's style sheet: the application's one gives text fields a border and buttons their full height.
MESSAGE_QSS = """
QTextEdit { border: none; border-radius: 0; padding: 0; background: transparent; }
QPushButton { min-height: 22px; max-height: 22px; font-size: 12px; }
"""


class RichText(QTextBrowser):
    def __init__(self, palette: Palette, color: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._palette = palette
        self._color = color
        self._starts: list[int] = []  # document position of each block
        self._code_ranges: list[tuple[int, int]] = []
        self._has_caret = False
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setOpenLinks(False)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextBrowserInteraction | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self.viewport().setAutoFillBackground(False)
        self.document().setDocumentMargin(0)
        self.document().setDefaultFont(ui_font())
        self.document().setIndentWidth(INDENT)
        self.anchorClicked.connect(self._open)
        self.highlighted.connect(lambda url: self.setToolTip(url.toString()))

    # Contents

    def set_plain(self, text: str) -> None:
        self.setPlainText(text)

    def set_table(self, table: Table) -> None:
        self.document().clear()
        self._code_ranges.clear()
        self._writer(QTextCursor(self.document())).write_table(table)

    def set_blocks(self, blocks: Sequence[Block], first_changed: int = 0) -> None:
        """Show `blocks`; those before `first_changed` are as they were and stay laid out."""
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()
        first_changed = min(first_changed, len(self._starts))
        if first_changed == 0:
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.removeSelectedText()
            self._unlist(cursor)
        else:
            # One position back: the block separator goes too, and with it the old block's format.
            end = self._starts[first_changed] - 1 if first_changed < len(self._starts) else self._end()
            cursor.setPosition(end)
            cursor.movePosition(QTextCursor.MoveOperation.End, QTextCursor.MoveMode.KeepAnchor)
            cursor.removeSelectedText()
        del self._starts[first_changed:]
        self._code_ranges[:] = [item for item in self._code_ranges if item[1] <= cursor.position()]
        self._starts += self._writer(cursor).write(blocks[first_changed:])
        cursor.endEditBlock()

    def _unlist(self, cursor: QTextCursor) -> None:
        text_list = cursor.currentList()
        if text_list is not None:
            text_list.remove(cursor.block())

    def _writer(self, cursor: QTextCursor) -> BlockWriter:
        return BlockWriter(cursor, self._palette, self._color, self._code_ranges)

    def _end(self) -> int:
        return max(0, self.document().characterCount() - 1)

    def set_caret(self, shown: bool) -> None:
        """A block at the end of the text, while more of it is on its way."""
        if shown != self._has_caret:
            self._has_caret = shown
            self.viewport().update()

    # Size

    def height_for(self, width: int) -> int:
        self.resize(width, self.height())  # first: a text edit lays a new document out at its own width, once
        self.document().setTextWidth(width)
        return round(self.document().size().height() + 0.49)

    def ideal_width(self, limit: int) -> int:
        self.resize(limit, self.height())
        self.document().setTextWidth(limit)
        return min(limit, int(self.document().idealWidth()) + 2)

    # Painting

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        self._paint_code(painter, event.rect())
        self._paint_block_marks(painter, event.rect())
        painter.end()
        super().paintEvent(event)
        if self._has_caret:
            painter = QPainter(self.viewport())
            self._paint_caret(painter)
            painter.end()

    def _paint_code(self, painter: QPainter, exposed: QRect) -> None:
        metrics = QFontMetricsF(mono_font(12))
        painter.setBrush(QColor(self._palette.raised))
        for start, end in self._code_ranges:
            block = self.document().findBlock(start)
            bounds = self._bounds(block)
            if bounds.top() > exposed.bottom():
                break
            if bounds.bottom() < exposed.top():
                continue
            for rect in _text_rects(block, bounds, start, end, metrics):
                is_first = rect.left() <= block.layout().position().x()  # at a margin or list marker, with no room before it
                painter.drawRoundedRect(rect.adjusted(-1 if is_first else -4, -2, -1, 2), 4, 4)

    def _paint_block_marks(self, painter: QPainter, exposed: QRect) -> None:
        painter.setBrush(QColor(self._palette.line))
        block = self.document().begin()
        while block.isValid():
            bounds = self._bounds(block)
            if bounds.top() > exposed.bottom():
                break
            for level in range(_int_property(block, QUOTE_PROPERTY)):
                top = bounds.top() - (block.blockFormat().topMargin() if self._quoted_before(block) else 0)
                painter.drawRect(QRectF(level * QUOTE_STEP, top, 2, bounds.bottom() - top))
            if _int_property(block, RULE_PROPERTY):
                painter.drawRect(QRectF(bounds.left(), bounds.center().y() + 4, self.viewport().width(), 1))
            block = block.next()

    def _quoted_before(self, block: QTextBlock) -> bool:
        return block.previous().isValid() and _int_property(block.previous(), QUOTE_PROPERTY) > 0

    def _paint_caret(self, painter: QPainter) -> None:
        block = self.document().lastBlock()
        layout = block.layout()
        if layout is None or layout.lineCount() == 0 or self.document().rootFrame().childFrames():
            return
        line = layout.lineAt(layout.lineCount() - 1)
        x = _cursor_x(line, block.length() - 1)
        metrics = QFontMetricsF(self.document().defaultFont())
        bounds = self._bounds(block)
        baseline = _line_offset(block, bounds) + line.y() + line.ascent()
        painter.fillRect(
            QRectF(bounds.left() + x + 1, baseline - metrics.capHeight() - 2, 6, metrics.capHeight() + 4), self._color
        )

    def _bounds(self, block: QTextBlock) -> QRectF:
        return self.document().documentLayout().blockBoundingRect(block)

    # Behaviour

    def loadResource(self, kind: int, name: QUrl | str) -> Any:
        """Nothing: a text of a model may not make the window fetch or read anything."""
        return None

    def createMimeDataFromSelection(self) -> QMimeData:
        """Words without this window's colours and fonts."""
        mime = QMimeData()
        mime.setText(self.textCursor().selection().toPlainText())
        return mime

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def _open(self, url: QUrl) -> None:
        if is_safe_link(url.toString()):
            QDesktopServices.openUrl(url)


def _int_property(block: QTextBlock, name: int) -> int:
    return int(block.blockFormat().property(name) or 0)


def _line_offset(block: QTextBlock, bounds: QRectF) -> float:
    """From a line's own y to the document's: the layout's lines begin below the top margin."""
    layout = block.layout()
    return layout.position().y() if layout is not None else bounds.top()


def _cursor_x(line: Any, position: int) -> float:
    x = line.cursorToX(position)
    return float(x[0] if isinstance(x, tuple) else x)


def _text_rects(block: QTextBlock, bounds: QRectF, start: int, end: int, metrics: QFontMetricsF) -> list[QRectF]:
    """Where the characters from `start` to `end` stand, one rectangle per line."""
    rects = []
    layout = block.layout()
    position, last = start - block.position(), end - block.position()
    while layout is not None and position < last:
        line = layout.lineForTextPosition(position)
        if not line.isValid():
            break
        line_end = min(last, line.textStart() + line.textLength())
        if line_end <= position:
            break
        left, right = _cursor_x(line, position), _cursor_x(line, line_end)
        top = layout.position().y() + line.y() + line.ascent() - metrics.ascent()
        rects.append(QRectF(layout.position().x() + left, top, right - left, metrics.height()))
        position = line_end
    return rects
