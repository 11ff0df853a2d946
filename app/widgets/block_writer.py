"""Writes the Markdown block model into a QTextDocument. Knows colours and fonts, but no widget and no source text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from PySide6.QtCore import Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFont,
    QTextBlockFormat,
    QTextCharFormat,
    QTextCursor,
    QTextFormat,
    QTextLength,
    QTextList,
    QTextListFormat,
    QTextTableFormat,
)

from app.core.markdown import Block, Code, Heading, ListBlock, Paragraph, Quote, Rule, Span, Table
from app.widgets.palette import Palette
from app.widgets.theme import BODY_PX, mono_font

QUOTE_PROPERTY = QTextFormat.Property.UserProperty + 1  # depth of the quote; its bars are painted by the widget
RULE_PROPERTY = QTextFormat.Property.UserProperty + 2  # the block is a rule, painted by the widget
QUOTE_STEP = 14
INDENT = 22
CODE_PADDING = 5  # pixels after inline code and after the character before it
_GAP, _ITEM_GAP = 8, 4
_LINE_PERCENT = 125.0
_HEADING_PX = {1: 18, 2: 16, 3: 14}
_BULLETS = (QTextListFormat.Style.ListDisc, QTextListFormat.Style.ListCircle, QTextListFormat.Style.ListSquare)
_ALIGNMENT = {
    "left": Qt.AlignmentFlag.AlignLeft,
    "right": Qt.AlignmentFlag.AlignRight,
    "center": Qt.AlignmentFlag.AlignHCenter,
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block stands: list depth, quote depth, pixels above it."""

    indent: int = 0
    quote: int = 0
    gap: int = _GAP


@dataclass(slots=True)
class Places:
    """Document positions, ascending."""

    code: list[tuple[int, int]] = field(default_factory=list)  # start and end of inline code
    marks: list[int] = field(default_factory=list)  # blocks with a rule or the bars of a quote

    def forget_from(self, position: int) -> None:
        self.code[:] = [item for item in self.code if item[1] <= position]
        self.marks[:] = [item for item in self.marks if item < position]


class BlockWriter:
    """Appends at `cursor` and tells in `places` what the widget has to paint itself."""

    def __init__(self, cursor: QTextCursor, palette: Palette, color: str, places: Places) -> None:
        self._cursor = cursor
        self._places = places
        self._palette = palette
        self._color = color
        self._mono = mono_font(12)

    def write(self, blocks: Sequence[Block], before: Block | None = None) -> list[int]:
        """The document position at which each of `blocks` begins; `before` is the block above them."""
        starts = []
        for block in blocks:
            starts.append(self._cursor.position() + (0 if self._at_start() else 1))
            goes_on = isinstance(block, ListBlock) and isinstance(before, ListBlock)  # a long list that was cut
            self._write(block, _Place(gap=_ITEM_GAP if goes_on else _GAP))
            before = block
        return starts

    def _at_start(self) -> bool:
        return self._cursor.position() == 0 and self._cursor.document().isEmpty()

    def _write(self, block: Block, place: _Place) -> None:
        match block:
            case Paragraph(spans):
                self._begin(place)
                self._spans(spans, self._base())
            case Heading(level, spans):
                self._begin(_Place(place.indent, place.quote, 14))
                self._spans(spans, self._heading_format(level))
            case ListBlock():
                self._list(block, place)
            case Quote(blocks):
                for index, inner in enumerate(blocks):
                    self._write(inner, _Place(place.indent, place.quote + 1, place.gap if index == 0 else _GAP))
            case Code(_, text):
                block_format = self._begin(place)
                block_format.setBackground(QBrush(QColor(self._palette.raised)))
                self._cursor.setBlockFormat(block_format)
                self._cursor.insertText(text.replace("\n", "\u2028"), self._code_format())
            case Table(_, rows):
                for row in rows:
                    self._begin(place)
                    self._spans([span for cell in row for span in (*cell, Span("   "))], self._base())
            case Rule():
                self._begin(_Place(place.indent, place.quote), rule=True)

    def _begin(self, place: _Place, *, rule: bool = False) -> QTextBlockFormat:
        """Open a new text block and return the format that it got."""
        block_format = line_format()
        block_format.setIndent(place.indent)
        block_format.setLeftMargin(place.quote * QUOTE_STEP)
        block_format.setProperty(QUOTE_PROPERTY, place.quote)
        block_format.setProperty(RULE_PROPERTY, rule)
        if self._at_start():
            self._cursor.setBlockFormat(block_format)
        else:
            block_format.setTopMargin(place.gap)
            self._cursor.insertBlock(block_format, self._base())
        if place.quote or rule:
            self._places.marks.append(self._cursor.position())
        return block_format

    def _list(self, block: ListBlock, place: _Place) -> None:
        depth = place.indent + 1
        text_list: QTextList | None = None
        for number, item in enumerate(block.items):
            gap = place.gap if number == 0 and not place.indent else _ITEM_GAP
            first, rest = (item[0], item[1:]) if item and isinstance(item[0], Paragraph) else (Paragraph(()), item)
            self._begin(_Place(0, place.quote, gap))
            if text_list is None:
                text_list = self._cursor.createList(self._list_format(block, depth))
            else:
                text_list.add(self._cursor.block())
            self._spans(first.spans, self._base())
            for child in rest:
                self._write(child, _Place(depth, place.quote, 6))

    def _list_format(self, block: ListBlock, depth: int) -> QTextListFormat:
        list_format = QTextListFormat()
        list_format.setIndent(depth)
        if block.start is None:
            list_format.setStyle(_BULLETS[min(depth, len(_BULLETS)) - 1])
        else:
            list_format.setStyle(QTextListFormat.Style.ListDecimal)
            list_format.setStart(block.start)
            list_format.setNumberSuffix(". ")
        return list_format

    def _spans(self, spans: Sequence[Span], base: QTextCharFormat) -> None:
        for index, span in enumerate(spans):
            start = self._cursor.position()
            text, text_format = span.text.replace("\n", "\u2028"), self._format(span, base)
            borders_code = span.code or (index + 1 < len(spans) and spans[index + 1].code)
            self._cursor.insertText(text[:-1] if borders_code else text, text_format)
            if borders_code:
                # Room for the padding of inline code, without a character that would be copied along.
                text_format.setFontLetterSpacingType(QFont.SpacingType.AbsoluteSpacing)
                text_format.setFontLetterSpacing(CODE_PADDING)
                self._cursor.insertText(text[-1], text_format)
            if span.code:
                self._places.code.append((start, self._cursor.position()))

    def _base(self) -> QTextCharFormat:
        text_format = QTextCharFormat()
        text_format.setForeground(QBrush(QColor(self._color)))
        return text_format

    def _heading_format(self, level: int) -> QTextCharFormat:
        text_format = self._base()
        text_format.setProperty(QTextFormat.Property.FontPixelSize, _HEADING_PX.get(level, BODY_PX))
        text_format.setFontWeight(QFont.Weight.DemiBold)
        return text_format

    def _code_format(self) -> QTextCharFormat:
        text_format = self._base()
        text_format.setFont(self._mono)
        return text_format

    def _format(self, span: Span, base: QTextCharFormat) -> QTextCharFormat:
        text_format = QTextCharFormat(base)
        if span.code:
            text_format.setFont(self._mono)
        if span.bold:
            text_format.setFontWeight(QFont.Weight.Bold)
        text_format.setFontItalic(span.italic)
        text_format.setFontStrikeOut(span.strike)
        if span.link:
            text_format.setAnchor(True)
            text_format.setAnchorHref(span.link)
            text_format.setForeground(QBrush(QColor(self._palette.accent)))
            text_format.setFontUnderline(True)
        return text_format

    def write_table(self, table: Table) -> None:
        """`table` as the only thing in the document."""
        columns = max((len(row) for row in table.rows), default=0)
        if not columns:
            return
        self._cursor.setBlockFormat(_no_height())
        frame = self._cursor.insertTable(len(table.rows), columns, self._table_format())
        for row_index, row in enumerate(table.rows):
            for column, spans in enumerate(row):
                cell = frame.cellAt(row_index, column)
                self._cursor = cell.firstCursorPosition()
                self._cursor.setBlockFormat(_aligned(table.aligns[column] if column < len(table.aligns) else "left"))
                base = self._base()
                if row_index == 0:
                    base.setFontWeight(QFont.Weight.DemiBold)
                    cell_format = cell.format()
                    cell_format.setBackground(QBrush(QColor(self._palette.raised)))
                    cell.setFormat(cell_format)
                self._spans(spans, base)
        self._cursor.movePosition(QTextCursor.MoveOperation.End)
        self._cursor.setBlockFormat(_no_height())

    def _table_format(self) -> QTextTableFormat:
        table_format = QTextTableFormat()
        table_format.setBorder(1)
        table_format.setBorderStyle(QTextTableFormat.BorderStyle.BorderStyle_Solid)
        table_format.setBorderBrush(QBrush(QColor(self._palette.line)))
        table_format.setBorderCollapse(True)
        table_format.setCellPadding(6)
        table_format.setCellSpacing(0)
        table_format.setWidth(QTextLength())
        return table_format


def line_format() -> QTextBlockFormat:
    """The distance of lines in running text."""
    block_format = QTextBlockFormat()
    block_format.setLineHeight(_LINE_PERCENT, QTextBlockFormat.LineHeightTypes.ProportionalHeight.value)
    return block_format


def _no_height() -> QTextBlockFormat:
    """For the empty blocks that a document must have around a table."""
    block_format = QTextBlockFormat()
    block_format.setLineHeight(1, QTextBlockFormat.LineHeightTypes.FixedHeight.value)
    return block_format


def _aligned(align: str) -> QTextBlockFormat:
    block_format = QTextBlockFormat()
    block_format.setAlignment(_ALIGNMENT.get(align, Qt.AlignmentFlag.AlignLeft))
    return block_format
