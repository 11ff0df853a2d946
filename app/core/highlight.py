"""Source code → coloured ranges, as a lazy stream that a caller may take in slices. Knows roles, not colours; no Qt."""

from collections.abc import Iterator
from enum import StrEnum

from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Token, _TokenType
from pygments.util import ClassNotFound

MAX_LINES = 2000  # the lexer takes about 1 ms per 40 lines; beyond this plain text serves better


class Role(StrEnum):
    KEYWORD = "keyword"
    STRING = "string"
    NUMBER = "number"
    COMMENT = "comment"
    NAME = "name"  # what is being defined or called: functions, classes, tags


_ROLES: tuple[tuple[_TokenType, Role], ...] = (
    (Token.Keyword, Role.KEYWORD),
    (Token.Operator.Word, Role.KEYWORD),
    (Token.Literal.String, Role.STRING),
    (Token.Literal.Number, Role.NUMBER),
    (Token.Comment, Role.COMMENT),
    (Token.Name.Function, Role.NAME),
    (Token.Name.Class, Role.NAME),
    (Token.Name.Tag, Role.NAME),
    (Token.Name.Decorator, Role.NAME),
)


def highlight(text: str, lang: str) -> Iterator[tuple[int, int, Role]]:
    """(start, length, role) in order of `start`; nothing for an unknown language. Lines past `MAX_LINES` stay plain."""
    lexer = _lexer(lang)
    if lexer is None:
        return
    end = _end_of_line(text, MAX_LINES)
    for start, kind, value in lexer.get_tokens_unprocessed(text[:end]):
        role = next((role for parent, role in _ROLES if kind in parent), None)
        if role is not None and value.strip():
            yield start, len(value), role


def _lexer(lang: str) -> Lexer | None:
    try:
        return get_lexer_by_name(lang) if lang else None
    except ClassNotFound:
        return None


def _end_of_line(text: str, count: int) -> int:
    end = -1
    for _ in range(count):
        end = text.find("\n", end + 1)
        if end < 0:
            return len(text)
    return end
