"""Markdown while it streams: parses the open tail alone and says from which block on things changed.

Half constructs are closed by guess, so that they look from the start as the whole will. Knows no Qt and no timing.
"""

import re
from dataclasses import replace

from app.core.markdown import Block, Code, ListBlock, Paragraph, Quote, Table, parse, parse_with_lines

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TOP_FENCE = re.compile(r"(`{3,}|~{3,})[^\n]*\n")
_MAX_TAIL = 1_500  # characters; a longer open block is cut between its parts: parsing takes about 2 ms per 1000
_PARTS = {ListBlock: re.compile(r"(?:[-*+]|\d{1,9}[.)])[ \t]"), Quote: re.compile(">"), Paragraph: re.compile("")}


class StreamingDocument:
    """Grows by `append`. `blocks[:num_final]` never change again; each call returns the first index that did."""

    def __init__(self, text: str = "") -> None:
        self.blocks: list[Block] = []
        self.num_final = 0
        self._tail = ""
        self._code_at = 0  # where the code begins in the tail, if the tail is one open fence
        for start in range(0, len(text), _MAX_TAIL):  # in portions, so that a long open block is cut from the first
            self.append(text[start : start + _MAX_TAIL])

    def append(self, text: str) -> int:
        """Take more text. Returns the index of the first block that changed."""
        text = text.replace("\r", "")
        if self._code_at and self._extend_code(text):
            return len(self.blocks) - 1
        self._tail += text
        first_changed = self.num_final
        if len(self._tail) <= _MAX_TAIL or not self._cut_long_block():
            first_changed = self._parse_tail(_close_tail(self._tail))
        return first_changed

    def finish(self) -> int:
        """Nothing more will come: what was held back or closed by guess is now taken as it stands."""
        return self._parse_tail(self._tail)

    def _extend_code(self, text: str) -> bool:
        """Without parsing, as long as nothing can be the closing fence."""
        code = self.blocks[-1]
        line = self._tail[self._tail.rfind("\n") + 1 :]
        if self._tail[0] in line + text or not isinstance(code, Code):
            return False
        self._tail += text
        self.blocks[-1] = replace(code, text=self._tail[self._code_at :].removesuffix("\n"))
        return True

    def _parse_tail(self, shown: str) -> int:
        first_changed = self.num_final
        parsed = parse_with_lines(shown)
        old = self.blocks[first_changed:]
        self.blocks[first_changed:] = [block for block, _ in parsed]
        for before, now in zip(old, self.blocks[first_changed:], strict=False):
            if before != now:
                break
            first_changed += 1
        self._freeze(parsed)
        fence = _TOP_FENCE.match(self._tail)
        last = self.blocks[-1] if self.blocks else None
        self._code_at = fence.end() if fence and isinstance(last, Code) and not last.closed else 0
        return first_changed

    def _freeze(self, parsed: list[tuple[Block, int]]) -> None:
        """A block is final once another began on a complete line: closed blocks never open again."""
        complete = self._tail.count("\n")
        # A table takes two lines to begin.
        begun = [line for block, line in parsed if line + isinstance(block, Table) < complete]
        if len(begun) > 1:
            self.num_final += len(begun) - 1
            self._tail = "\n".join(self._tail.split("\n")[begun[-1] :])

    def _cut_long_block(self) -> bool:
        """Make all of a list but its last item final, or likewise; False where the block has no such parts."""
        part = _PARTS.get(type(self.blocks[-1])) if self.blocks else None
        lines = self._tail.split("\n")
        cut = max((number for number, line in enumerate(lines[:-1]) if part and part.match(line)), default=0)
        if cut == 0:
            return False
        head = parse("\n".join(lines[:cut]))
        self.blocks[self.num_final :] = head
        self.num_final += len(head)
        self._tail = "\n".join(lines[cut:])
        self._parse_tail(_close_tail(self._tail))
        return True


_MARKERS_ONLY = re.compile(r"\s*(?:[-=*+_#>`~:| ]+|\d{1,9}[.)]?)\s*")
_CHUNK_START = re.compile(r"\n[ \t]*\n|\n[ \t]*(?:[-*+]|\d+[.)]|#{1,6}|>)[ \t]|\|")
_HALF_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\Z")
_TABLE_ROW = re.compile(r" {0,3}\|")
_DELIMITER = re.compile(r"[|:\- ]*")
_RUN = re.compile(r"`+|\*+|~~|__?")


def _close_tail(text: str) -> str:
    """`text` with its open end closed by guess, so that half a construct looks like the whole one will."""
    head, newline, line = text.rpartition("\n")
    if _MARKERS_ONLY.fullmatch(line) and line.strip():
        text = head + newline  # "-" may become a rule, a heading or an item: wait for the rest of the line
    after_code = _end_of_code(text)
    if after_code < 0:
        return text
    text = _complete_table(text)
    cut = max([after_code, *(match.end() for match in _CHUNK_START.finditer(text))])
    return text[:cut] + _close_inline(text[cut:])


def _end_of_code(text: str) -> int:
    """Where the last closed fence ends, 0 without one, -1 while one is open."""
    marker, end, position = "", 0, 0
    for line in text.split("\n"):
        match = _FENCE.match(line.lstrip())
        position += len(line) + 1
        if match and not marker:
            marker = match[1]
        elif match and match[1].startswith(marker) and not line.strip().strip(marker[0]):
            marker, end = "", min(position, len(text))
    return -1 if marker else end


def _complete_table(text: str) -> str:
    """Give a header row without its delimiter one, so that a table is a table from its first line."""
    paragraph = text[text.rfind("\n\n") + 2 :] if "\n\n" in text else text
    lines = paragraph.strip("\n").split("\n")
    header = lines[0].rstrip()
    is_half = len(lines) == 1 or (len(lines) == 2 and _DELIMITER.fullmatch(lines[1]) and not paragraph.endswith("\n"))
    if not _TABLE_ROW.match(header) or header.count("|") < 2 or not is_half:
        return text
    columns = max(1, header.rstrip("|").count("|"))
    return f"{text[: len(text) - len(paragraph)]}{header.rstrip('|')}|\n{'|---' * columns}|\n"


def _close_inline(text: str) -> str:
    text = _HALF_LINK.sub(r"\1", text)
    open_runs: list[str] = []
    position = 0
    while match := _RUN.search(text, position):
        run, position = match[0], match.end()
        if text[match.start() - 1 : match.start()] == "\\":
            continue
        if run[0] == "`":
            end = re.compile(rf"(?<!`){run}(?!`)").search(text, position)
            if end is None:
                rest = text[position:]
                return text + run if rest.strip() else text if "\n" in rest else text[: match.start()]
            position = end.end()
        elif run in open_runs and not text[match.start() - 1].isspace():
            del open_runs[open_runs.index(run) :]
        elif position == len(text) and open_runs and open_runs[-1].startswith(run):
            text = text[: match.start()]  # half of what will close it
        elif _can_open(text, match.start(), position):
            open_runs.append(run)
        elif position == len(text) and not text[: match.start()][-1:].strip():
            text = text[: match.start()]
    return text.rstrip(" ") + "".join(reversed(open_runs)) if open_runs else text


def _can_open(text: str, start: int, end: int) -> bool:
    is_within_word = text[start] == "_" and text[:start][-1:].isalnum()
    return end < len(text) and not text[end].isspace() and not is_within_word
