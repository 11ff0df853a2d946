"""Markdown text → a small block model. Knows neither Qt nor colours; loads and opens nothing.

Model output is untrusted: HTML stays literal text, images become their description and address, and only http, https and
mailto addresses become links.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt
from markdown_it.token import Token


@dataclass(frozen=True, slots=True)
class Span:
    text: str
    bold: bool = False
    italic: bool = False
    strike: bool = False
    code: bool = False
    link: str = ""


@dataclass(frozen=True, slots=True)
class Paragraph:
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class ListBlock:
    """`start` is None for bullets."""

    start: int | None
    items: tuple[tuple["Block", ...], ...]


@dataclass(frozen=True, slots=True)
class Quote:
    blocks: tuple["Block", ...]


@dataclass(frozen=True, slots=True)
class Code:
    lang: str
    text: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Row 0 is the header. `aligns` holds "left", "center" or "right" per column."""

    aligns: tuple[str, ...]
    rows: tuple[tuple[tuple[Span, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Rule:
    pass


Block = Paragraph | Heading | ListBlock | Quote | Code | Table | Rule

_LINK_SCHEMES = ("http://", "https://", "mailto:")


def is_safe_link(url: str) -> bool:
    return url.lower().startswith(_LINK_SCHEMES)


def _make_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable(["table", "strikethrough"])
    parser.validateLink = is_safe_link  # type: ignore[method-assign]
    return parser


_PARSER = _make_parser()


def parse(text: str) -> tuple[Block, ...]:
    """All top-level blocks of a finished text."""
    return tuple(block for block, _ in parse_with_lines(text))


def parse_with_lines(text: str) -> list[tuple[Block, int]]:
    """Top-level blocks, each with the line where it begins."""
    text = text.replace("\r", "")
    return list(_blocks(_PARSER.parse(text), text.split("\n")))


def _blocks(tokens: Sequence[Token], lines: list[str]) -> Iterator[tuple[Block, int]]:
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = _closing(tokens, index) if token.nesting == 1 else index
        block = _block(token, tokens[index + 1 : end], lines)
        if block is not None:
            yield block, (token.map or [0, 0])[0]
        index = end + 1


def _closing(tokens: Sequence[Token], index: int) -> int:
    level = tokens[index].level
    return next(i for i in range(index + 1, len(tokens)) if tokens[i].level == level and tokens[i].nesting == -1)


def _block(token: Token, inner: Sequence[Token], lines: list[str]) -> Block | None:
    match token.type:
        case "paragraph_open":
            return Paragraph(_spans(inner[0].children or ()))
        case "heading_open":
            return Heading(int(token.tag[1]), _spans(inner[0].children or ()))
        case "bullet_list_open":
            return ListBlock(None, tuple(_items(inner, lines)))
        case "ordered_list_open":
            return ListBlock(int(token.attrs.get("start", 1)), tuple(_items(inner, lines)))
        case "blockquote_open":
            return Quote(tuple(block for block, _ in _blocks(inner, lines)))
        case "fence":
            lang = token.info.split()[0] if token.info.strip() else ""
            return Code(lang, token.content.removesuffix("\n"), _is_closed(token, lines))
        case "code_block":
            return Code("", token.content.removesuffix("\n"))
        case "table_open":
            return _table(inner)
        case "hr":
            return Rule()
    return None


def _is_closed(token: Token, lines: list[str]) -> bool:
    begin, end = token.map or [0, 0]
    last = lines[end - 1].strip(" >\t") if end - begin > 1 and end <= len(lines) else ""
    return len(last) >= len(token.markup) and set(last) == {token.markup[0]}


def _items(tokens: Sequence[Token], lines: list[str]) -> Iterator[tuple[Block, ...]]:
    index = 0
    while index < len(tokens):
        end = _closing(tokens, index)
        yield _with_task_box(tuple(block for block, _ in _blocks(tokens[index + 1 : end], lines)))
        index = end + 1


def _with_task_box(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    first = blocks[0] if blocks else None
    if not isinstance(first, Paragraph) or not first.spans:
        return blocks
    head = first.spans[0]
    for mark, box in (("[ ] ", "☐ "), ("[x] ", "☑ "), ("[X] ", "☑ ")):
        if head.text.startswith(mark) and not head.code:
            return (Paragraph((replace(head, text=box + head.text[4:]), *first.spans[1:])), *blocks[1:])
    return blocks


def _table(tokens: Sequence[Token]) -> Table:
    rows: list[tuple[tuple[Span, ...], ...]] = []
    cells: list[tuple[Span, ...]] = []
    aligns: list[str] = []
    for index, token in enumerate(tokens):
        if token.type in ("th_open", "td_open"):
            cells.append(_spans(tokens[index + 1].children or ()))
            if token.type == "th_open":
                aligns.append(str(token.attrGet("style") or "").removeprefix("text-align:") or "left")
        elif token.type == "tr_close":
            rows.append(tuple(cells))
            cells = []
    return Table(tuple(aligns), tuple(rows))


_STYLES = {"strong": "bold", "em": "italic", "s": "strike"}


def _spans(tokens: Iterable[Token]) -> tuple[Span, ...]:
    depth = dict.fromkeys(_STYLES.values(), 0)
    link = ""
    spans: list[Span] = []
    for token in tokens:
        name = token.type.removesuffix("_open").removesuffix("_close")
        if name in _STYLES:
            depth[_STYLES[name]] += token.nesting
        elif name == "link":
            link = str(token.attrGet("href") or "") if token.nesting == 1 else ""
        else:
            style = {key: value > 0 for key, value in depth.items()}
            spans.append(Span(_inline_text(token), **style, code=token.type == "code_inline", link=link))
    return _merged(spans)


def _inline_text(token: Token) -> str:
    if token.type in ("softbreak", "hardbreak"):
        return "\n"  # local models mean their line breaks
    if token.type == "image":
        return f"{token.content} ({token.attrGet('src')})".strip()
    return token.content


def _merged(spans: list[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in spans:
        if not span.text:
            continue
        if merged and replace(merged[-1], text=span.text) == span and not span.code:
            merged[-1] = replace(span, text=merged[-1].text + span.text)
        else:
            merged.append(span)
    return tuple(merged)
