"""A read-only, selectable text that is as tall as its contents. Takes Markdown blocks or plain text; loads nothing by itself.

A link opens in the browser when it is clicked, and only then.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QMimeData, QPointF, QRect, QRectF, Qt, QUrl
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
from app.core.tooltip import plain_tooltip
from app.widgets.block_writer import INDENT, QUOTE_PROPERTY, QUOTE_STEP, RULE_PROPERTY, BlockWriter, Places, line_format
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
        self._places = Places()
        self._height = (0, 0, 0)  # width, revision of the document, height: measuring lays everything out again
        self._has_caret = False
        self._has_table = False
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
        self.highlighted.connect(lambda url: self.setToolTip(plain_tooltip(url.toString())))

    # Contents

    def set_plain(self, text: str) -> None:
        self.setPlainText(text)
        cursor = QTextCursor(self.document())
        cursor.select(QTextCursor.SelectionType.Document)
        cursor.setBlockFormat(line_format())

    def set_table(self, table: Table) -> None:
        self._has_table = True
        self._places.forget_from(0)
        cursor = QTextCursor(self.document())
        cursor.beginEditBlock()  # one layout at the end instead of one per cell
        cursor.select(QTextCursor.SelectionType.Document)
        cursor.removeSelectedText()
        self._writer(cursor).write_table(table)
        cursor.endEditBlock()

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
        self._places.forget_from(cursor.position())
        before = blocks[first_changed - 1] if first_changed else None
        self._starts += self._writer(cursor).write(blocks[first_changed:], before)
        cursor.endEditBlock()

    def _unlist(self, cursor: QTextCursor) -> None:
        text_list = cursor.currentList()
        if text_list is not None:
            text_list.remove(cursor.block())

    def _writer(self, cursor: QTextCursor) -> BlockWriter:
        return BlockWriter(cursor, self._palette, self._color, self._places)

    def _end(self) -> int:
        return max(0, self.document().characterCount() - 1)

    def set_caret(self, shown: bool) -> None:
        """A block at the end of the text, while more of it is on its way."""
        if shown != self._has_caret:
            self._has_caret = shown
            self.viewport().update()

    # Size

    def height_for(self, width: int) -> int:
        revision = self.document().revision()
        if self._height[:2] != (width, revision):
            self.resize(width, self.height())  # first: a text edit lays a new document out at its own width, once
            if self.document().textWidth() != width:
                self.document().setTextWidth(width)
            self._height = (width, revision, round(self.document().size().height() + 0.49))
        return self._height[2]

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
        first, last = self._exposed_positions(exposed)
        code = self._places.code
        for start, end in code[bisect_left(code, (first, 0)) : bisect_left(code, (last + 1, 0))]:
            block = self.document().findBlock(start)
            origin = self._bounds(block).topLeft()
            for rect in _text_rects(block, start, end, metrics):
                is_first = rect.left() <= 0  # at a margin or list marker, with no room before it
                rect.translate(origin)
                painter.drawRoundedRect(rect.adjusted(-1 if is_first else -4, -2, -1, 2), 4, 4)

    def _paint_block_marks(self, painter: QPainter, exposed: QRect) -> None:
        painter.setBrush(QColor(self._palette.line))
        first, last = self._exposed_positions(exposed)
        marks = self._places.marks
        for position in marks[bisect_left(marks, first) : bisect_left(marks, last + 1)]:
            block = self.document().findBlock(position)
            bounds = self._bounds(block)
            for level in range(_int_property(block, QUOTE_PROPERTY)):
                top = bounds.top() - (block.blockFormat().topMargin() if self._quoted_before(block) else 0)
                painter.drawRect(QRectF(level * QUOTE_STEP, top, 2, bounds.bottom() - top))
            if _int_property(block, RULE_PROPERTY):
                painter.drawRect(QRectF(bounds.left(), bounds.center().y() + 4, self.viewport().width(), 1))

    def _exposed_positions(self, exposed: QRect) -> tuple[int, int]:
        """From the start of the first exposed block to the end of the last one."""
        if self._has_table:
            return 0, self._end()
        layout = self.document().documentLayout()
        first, last = (
            self.document().findBlock(max(0, layout.hitTest(QPointF(0, y), Qt.HitTestAccuracy.FuzzyHit)))
            for y in (exposed.top(), exposed.bottom() + 1)
        )
        return first.position(), last.position() + last.length()

    def _quoted_before(self, block: QTextBlock) -> bool:
        return block.previous().isValid() and _int_property(block.previous(), QUOTE_PROPERTY) > 0

    def _paint_caret(self, painter: QPainter) -> None:
        block = self.document().lastBlock()
        layout = block.layout()
        if layout.lineCount() == 0 or self._has_table:
            return
        line = layout.lineAt(layout.lineCount() - 1)
        origin = self._bounds(block).topLeft()
        cap = QFontMetricsF(self.document().defaultFont()).capHeight()
        baseline = origin.y() + line.y() + line.ascent()
        x = origin.x() + _cursor_x(line, block.length() - 1)
        painter.fillRect(QRectF(x + 1, baseline - cap - 2, 6, cap + 4), QColor(self._color))

    def _bounds(self, block: QTextBlock) -> QRectF:
        """Its top left is where the block's own coordinates begin, also within a table."""
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


def _cursor_x(line: Any, position: int) -> float:
    x = line.cursorToX(position)
    return float(x[0] if isinstance(x, tuple) else x)


def _text_rects(block: QTextBlock, start: int, end: int, metrics: QFontMetricsF) -> list[QRectF]:
    """Where the characters from `start` to `end` stand in the block's coordinates, one rectangle per line."""
    rects = []
    layout = block.layout()
    position, last = start - block.position(), end - block.position()
    while position < last:
        line = layout.lineForTextPosition(position)
        if not line.isValid():
            break
        line_end = min(last, line.textStart() + line.textLength())
        if line_end <= position:
            break
        left, right = _cursor_x(line, position), _cursor_x(line, line_end)
        rects.append(QRectF(left, line.y() + line.ascent() - metrics.ascent(), right - left, metrics.height()))
        position = line_end
    return rects
