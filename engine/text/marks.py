"""The marks by which a family's models divide their answers: which a checkpoint uses, from its vocabulary and template."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto


class Role(Enum):
    THOUGHT = auto()  # opens one
    THOUGHT_END = auto()
    CALL = auto()  # of a tool
    CALL_END = auto()
    PART = auto()  # of a call's text
    SILENT = auto()  # stands around calls
    START = auto()  # harmony: a message begins
    CHANNEL = auto()  # its header names who it is for
    CONSTRAIN = auto()
    MESSAGE = auto()  # the header ends
    MESSAGE_END = auto()
    TITLE = auto()  # gemma: a line follows that names the channel


_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
_CALLS = (
    ("<tool_call>", "</tool_call>"),  # Qwen, GLM, Granite 4
    ("<|tool_call>", "<tool_call|>"),  # Gemma 4
    ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),  # DeepSeek, two forms
    ("<|tool_call_begin|>", "<|tool_call_end|>"),  # Kimi
    ("<minimax:tool_call>", "</minimax:tool_call>"),
    ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),  # DeepSeek V4
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM2
    ("[TOOL_CALLS]", ""),  # Mistral: the next or the end of the answer closes it
    ("<|tool_call|>", ""),  # Granite 3
)
_PARTS = ("<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "[ARGS]", "[CALL_ID]")
_SILENT = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_HARMONY = {
    "<|start|>": Role.START, "<|channel|>": Role.CHANNEL, "<|constrain|>": Role.CONSTRAIN, "<|message|>": Role.MESSAGE,
    "<|end|>": Role.MESSAGE_END, "<|call|>": Role.MESSAGE_END, "<|return|>": Role.MESSAGE_END,
}  # fmt: skip
_DSML = "｜DSML｜"  # a token within marks, from which templates put these together
_TITLE, _TITLE_END = "<|channel>", "<channel|>"


@dataclass(frozen=True, slots=True)
class Form:
    """How a model divides its answers. `ids` are the marks that are one token each; `texts` are written out in several."""

    roles: Mapping[str, Role]
    ends: Mapping[str, str]  # opening mark to closing one; "" where the answer's end closes
    ids: Mapping[int, str]
    texts: tuple[str, ...]
    special: frozenset[str] = frozenset()  # marks that are never text

    @property
    def is_harmony(self) -> bool:
        return "<|message|>" in self.roles

    @property
    def has_thoughts(self) -> bool:
        return Role.THOUGHT in self.roles.values() or Role.TITLE in self.roles.values() or self.is_harmony

    def opened_by(self, prompt: str) -> str:
        """The mark with which the end of a prompt, special tokens included, has begun the answer; "" without one."""
        tail = prompt.rstrip()
        if self.is_harmony and tail.endswith("<|start|>assistant"):
            return "<|start|>"
        if _TITLE in self.roles and tail.endswith(f"{_TITLE}thought"):
            return _TITLE
        return next((mark for mark, role in self.roles.items() if role is Role.THOUGHT and tail.endswith(mark)), "")


PLAIN = Form({}, {}, {}, ())


def find_form(template: str, token_id: Callable[[str], int | None], is_special: Callable[[int], bool]) -> Form:
    """Of a checkpoint: marks that its vocabulary has as tokens, or that its template writes."""
    roles: dict[str, Role] = {}
    ends: dict[str, str] = {}

    def knows(mark: str) -> bool:
        word = _DSML if _DSML in mark else mark
        return token_id(word) is not None or word in template

    dsml = token_id(_DSML)
    is_dropped = dsml is not None and is_special(dsml)  # from the text that a mark is found in
    for pairs, begin, end in ((_THOUGHTS, Role.THOUGHT, Role.THOUGHT_END), (_CALLS, Role.CALL, Role.CALL_END)):
        for opening, closing in pairs:
            if knows(opening) and (not closing or knows(closing)):
                if is_dropped:
                    opening, closing = opening.replace(_DSML, ""), closing.replace(_DSML, "")
                roles[opening], ends[opening] = begin, closing
                if closing:
                    roles[closing] = end
    if knows(_TITLE) and knows(_TITLE_END):
        roles |= {_TITLE: Role.TITLE, _TITLE_END: Role.THOUGHT_END}
        ends[_TITLE] = _TITLE_END
    roles |= {mark: Role.PART for mark in _PARTS if knows(mark)} | {mark: Role.SILENT for mark in _SILENT if knows(mark)}
    if all(token_id(mark) is not None for mark in ("<|channel|>", "<|message|>", "<|start|>")):
        roles |= {mark: role for mark, role in _HARMONY.items() if token_id(mark) is not None}
    ids = {number: mark for mark in roles if (number := token_id(mark)) is not None}
    texts = tuple(mark for mark in roles if mark not in ids.values())
    return Form(roles, ends, ids, texts, frozenset(mark for number, mark in ids.items() if is_special(number)))
