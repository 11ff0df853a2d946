"""Splits an answer, as it is written, into what is said, what was thought before, and calls of tools.

A mark is one only where it can be: a thought begins before the answer does, and a mark in a block of code is text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.protocol import SpanKind
from engine.text.calls import call_words
from engine.text.marks import Form, Role
from engine.text.stream import overlap


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one span; `span` counts them from 0."""

    kind: SpanKind
    text: str
    span: int


class SpanSplitter:
    """Text and marks in the order in which they come, to pieces. Half a mark is held back until it is none."""

    def __init__(self, form: Form, opened: str = "") -> None:
        """`opened` is the mark with which the prompt began the answer."""
        self._form = form
        self._kind = SpanKind.ANSWER
        self._end = ""  # the mark that closes the present span
        self._held = ""  # perhaps the beginning of a mark
        self._space = ""  # shown only if more of the same span follows
        self._raw = ""  # of a call, or of the answer's spaces before anything is said
        self._header: str | None = None
        self._recipient = ""  # of a harmony message
        self._has_said = self._is_marked = False
        self._is_fenced, self._line = False, ""
        self._span, self._is_begun = -1, False
        if opened:
            self._open(opened, form.roles[opened])
        if opened and form.roles[opened] is Role.TITLE:
            self._header, self._kind = None, SpanKind.THOUGHT

    def text(self, text: str) -> list[Piece]:
        """The pieces that are certain now."""
        pieces: list[Piece] = []
        self._held += text
        while found := self._first_mark():
            place, mark = found
            before, self._held = self._held[:place], self._held[place + len(mark) :]
            pieces += self._put(before)
            pieces += self._take(mark)
        keep = max((overlap(self._held, mark) for mark in self._form.texts), default=0)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return pieces + list(self._put(certain))

    def mark(self, mark: str) -> list[Piece]:
        """One that came as a token of its own."""
        held, self._held = self._held, ""
        return [*self._put(held), *self._take(mark)]

    def finish(self) -> list[Piece]:
        """What is still held, of spans that were not closed too."""
        held, self._held = self._held, ""
        pieces = [*self._put(held), *self._close()]
        if self._header is not None:
            header, self._header = self._header, None
            pieces += self._put(header.strip())
        return pieces

    # Marks

    def _first_mark(self) -> tuple[int, str] | None:
        places = [(place, mark) for mark in self._form.texts if (place := self._held.find(mark)) >= 0]
        return min(places, default=None)

    def _take(self, mark: str) -> Iterator[Piece]:
        role = self._form.roles[mark]
        if self._is_text(mark, role):
            yield from self._put(mark)
            return
        self._is_marked = True
        if role is Role.THOUGHT and self._kind is SpanKind.THOUGHT:
            return  # the prompt has opened it already
        if role in (Role.THOUGHT, Role.CALL, Role.TITLE, Role.START, Role.CHANNEL):
            yield from self._close()
            self._open(mark, role)
        elif role is Role.MESSAGE and self._header is not None:
            self._begin(self._header)
        elif role is Role.CONSTRAIN and self._header is not None:
            self._header += " "
        elif role is Role.MESSAGE_END or (mark == self._end and role in (Role.THOUGHT_END, Role.CALL_END)):
            yield from self._close()

    def _is_text(self, mark: str, role: Role) -> bool:
        if self._kind is SpanKind.CALL and self._header is None:
            return role is Role.PART or (mark not in (self._end, *self._form.ends) and mark not in self._form.special)
        if mark in self._form.special:
            return False
        if self._kind is SpanKind.ANSWER and (self._is_fenced or self._line.endswith("`")):
            return True
        return self._has_said and self._kind is SpanKind.ANSWER and role in (Role.THOUGHT, Role.THOUGHT_END)

    def _open(self, mark: str, role: Role) -> None:
        self._is_begun, self._space, self._raw = False, "", ""
        self._end = self._form.ends.get(mark, "")
        if role in (Role.TITLE, Role.START):
            self._header = ""
        elif role is Role.CHANNEL:
            self._header = f"{self._header or ''} channel="
        else:
            self._kind = SpanKind.CALL if role is Role.CALL else SpanKind.THOUGHT

    def _begin(self, header: str) -> None:
        """The span that a header announces: harmony's, or the line after gemma's mark."""
        words = header.split()
        self._header, self._is_begun = None, False
        self._recipient = next((word.removeprefix("to=") for word in words if word.startswith("to=")), "")
        is_thought = "channel=analysis" in words or words == ["thought"]
        self._kind = SpanKind.CALL if self._recipient else SpanKind.THOUGHT if is_thought else SpanKind.ANSWER

    def _close(self) -> Iterator[Piece]:
        """The present span ends; what follows is the answer."""
        if self._kind is SpanKind.CALL and self._header is None:
            raw, self._raw = self._raw, ""
            for words in call_words(raw, self._recipient.removeprefix("functions.")):
                self._is_begun = False
                yield self._piece(words)
        self._kind, self._end, self._recipient = SpanKind.ANSWER, "", ""
        self._is_begun, self._space, self._raw = False, "", ""

    # Text

    def _put(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        if self._header is not None:
            self._header += text
            title, line_end, rest = self._header.partition("\n")
            if line_end and self._end:
                self._begin(title)
                yield from self._put(rest)
        elif self._kind is SpanKind.CALL:
            self._raw += text
        elif self._kind is SpanKind.THOUGHT:
            yield from self._think(text)
        else:
            yield from self._say(text)

    def _think(self, text: str) -> Iterator[Piece]:
        text = self._space + text if self._is_begun else text.lstrip()
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            yield self._piece(shown)

    def _say(self, text: str) -> Iterator[Piece]:
        if not self._has_said and self._form.has_thoughts:  # spaces before a thought are nobody's
            self._raw += text
            if not self._raw.strip():
                return
            text, self._raw = self._raw, ""
        if not self._is_begun and self._is_marked:
            text = text.lstrip()
        if not text:
            return
        self._has_said = True
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._is_fenced ^= line.lstrip().startswith("```")
        yield self._piece(text)

    def _piece(self, text: str) -> Piece:
        if not self._is_begun:
            self._span, self._is_begun = self._span + 1, True
        return Piece(self._kind, text, self._span)
