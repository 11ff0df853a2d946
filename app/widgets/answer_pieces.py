"""The pieces of one text, top to bottom: running text, code cards, tables. Knows blocks and colours; not where they stand.

A growing text is parsed and laid out at its end only, however long it has become.
"""

from collections.abc import Callable, Iterable, Sequence

from PySide6.QtWidgets import QWidget

from app.core.markdown import Block, Code, Table, parse
from app.core.markdown_stream import StreamingDocument
from app.widgets.code_block import CodeBlock
from app.widgets.palette import Palette
from app.widgets.rich_text import RichText

_GAP = 10
_TEXT_BLOCKS = 24  # in one text widget: few enough that laying one out stays within a frame


class PlainText(RichText):
    """Running text; its own type, so that a table's widget is not reused for it."""


class TableText(RichText):
    pass


_Piece = CodeBlock | PlainText | TableText


class AnswerPieces:
    """Creates its widgets as children of `parent` and reuses them while the text grows. `color` is that of running text."""

    def __init__(self, parent: QWidget, palette: Palette, color: str, resized: Callable[[], None]) -> None:
        self._parent = parent
        self._palette = palette
        self._color = color
        self._resized = resized
        self._text = ""
        self._document: StreamingDocument | None = None  # only while the text is growing
        self._groups: list[tuple[int, _Piece]] = []  # (index of its first block, widget)

    @property
    def widgets(self) -> list[_Piece]:
        return [widget for _, widget in self._groups]

    def set_text(self, text: str, is_growing: bool) -> None:
        """Show Markdown. While it grows, half constructs look like the whole ones will."""
        if text == self._text and is_growing and self._document is not None:
            return
        if self._document is not None and text.startswith(self._text):
            changed = self._document.append(text[len(self._text) :])
            if not is_growing:
                changed = min(changed, self._document.finish())
            self._set_blocks(self._document.blocks, changed)
        elif is_growing:
            self._document = StreamingDocument(text)
            self._set_blocks(self._document.blocks, 0)
        elif text != self._text:
            self._set_blocks(parse(text), 0)
        self._document = self._document if is_growing else None
        self._text = text

    def _set_blocks(self, blocks: Sequence[Block], first_changed: int) -> None:
        """Those before `first_changed` are as they were."""
        kept = max((i for i, (first, _) in enumerate(self._groups) if first <= first_changed), default=0)
        start = self._groups[kept][0] if self._groups else 0
        old = self._groups[kept:]
        del self._groups[kept:]
        for number, (first, group) in enumerate(_grouped(blocks, start)):
            widget = old[number][1] if number < len(old) and old[number][0] == first else None
            unchanged = max(0, first_changed - first)
            if not isinstance(widget, _kind(group[0])):
                widget, unchanged = self._create(group[0]), 0
            self._groups.append((first, widget))
            _fill(widget, group, unchanged)
        self._drop(widget for _, widget in old if widget not in self.widgets)

    def _create(self, head: Block) -> _Piece:
        kind = _kind(head)
        if kind is CodeBlock:
            block = CodeBlock(self._palette, self._parent)
            block.resized.connect(self._resized)
            piece: _Piece = block
        else:
            piece = (TableText if kind is TableText else PlainText)(self._palette, self._color, self._parent)
        piece.show()
        return piece

    def _drop(self, widgets: Iterable[QWidget]) -> None:
        for widget in widgets:
            widget.hide()
            widget.deleteLater()

    def set_caret(self, shown: bool) -> None:
        for index, (_, widget) in enumerate(self._groups):
            if isinstance(widget, RichText):
                widget.set_caret(shown and index == len(self._groups) - 1)

    def place(self, left: int, top: int, width: int) -> int:
        """Stack the pieces at that width. Returns where the last one ends."""
        for index, (_, widget) in enumerate(self._groups):
            top += _GAP if index else 0
            height = widget.height_for(width)
            widget.setGeometry(left, top, width, height)
            top += height
        return top


def _kind(head: Block) -> type[_Piece]:
    return CodeBlock if isinstance(head, Code) else TableText if isinstance(head, Table) else PlainText


def _fill(widget: _Piece, group: list[Block], unchanged: int) -> None:
    head = group[0]
    if isinstance(widget, CodeBlock):
        assert isinstance(head, Code), "a card shows code"
        widget.set_code(head)
    elif isinstance(widget, TableText):
        assert isinstance(head, Table), "a table's text shows a table"
        widget.set_table(head)
    else:
        widget.set_blocks(group, unchanged)


def _grouped(blocks: Sequence[Block], start: int) -> list[tuple[int, list[Block]]]:
    groups: list[tuple[int, list[Block]]] = []
    for index in range(start, len(blocks)):
        block = blocks[index]
        joins = groups and not isinstance(block, Code | Table) and not isinstance(groups[-1][1][0], Code | Table)
        if joins and len(groups[-1][1]) < _TEXT_BLOCKS:
            groups[-1][1].append(block)
        else:
            groups.append((index, [block]))
    return groups
