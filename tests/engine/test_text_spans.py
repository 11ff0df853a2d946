"""What a person reads of an answer: thoughts, calls and words of each family, however their marks are cut over tokens."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.protocol import SpanKind
from engine.text.answer import AnswerReader
from engine.text.marks import Form, find_form
from engine.text.tokenizer import Tokenizer as TextTokenizer

A, T, C = SpanKind.ANSWER, SpanKind.THOUGHT, SpanKind.CALL
Spans = list[tuple[SpanKind, str]]

QWEN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
GPT_OSS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
GEMMA = ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>")
DEEPSEEK = ("<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>")  # fmt: skip
KIMI = ("<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")  # fmt: skip
MISTRAL = ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
MINIMAX = ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")
DEEPSEEK_V4 = ("<think>", "</think>", "｜DSML｜")
LFM = ("<|tool_call_start|>", "<|tool_call_end|>")
SPECIAL = {*GPT_OSS, *GEMMA, *DEEPSEEK[2:], *KIMI[2:], *MISTRAL}  # as they are published, most are special tokens


def _tokenizer(folder: Path, marks: tuple[str, ...]) -> TextTokenizer:
    """Bytes, and the family's marks as tokens of their own."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    for mark in marks:
        is_special = mark in SPECIAL
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([AddedToken(mark, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextTokenizer(folder)


def _read(reader: AnswerReader, ids: list[int]) -> Spans:
    pieces = [piece for number in ids for piece in reader.add(number)]
    pieces += reader.finish()
    joined: dict[int, tuple[SpanKind, str]] = {}
    for piece in pieces:
        assert piece.span in (len(joined), len(joined) - 1), "spans come one after another"
        kind, text = joined.get(piece.span, (piece.kind, ""))
        assert kind is piece.kind
        joined[piece.span] = (kind, text + piece.text)
    return list(joined.values())


def _split(folder: Path, marks: tuple[str, ...], answer: str, prompt: str = "", template: str = "") -> Spans:
    tokenizer = _tokenizer(folder, marks)
    form = find_form(template, tokenizer.token_id, tokenizer.is_special)
    return _read(AnswerReader(tokenizer, form, tokenizer.encode(prompt)), tokenizer.encode(answer))


WEATHER = 'get_weather\n{\n  "city": "Zürich"\n}'
JSON = '{"city": "Zürich"}'
CASES: dict[str, tuple[tuple[str, ...], str, str, Spans]] = {
    "plain": (QWEN, "user: hi\n", "  Hello\n\n", [(A, "  Hello\n\n")]),
    "qwen": (QWEN, "", "<think>\nHm.\n\nYes.\n</think>\n\nHello", [(T, "Hm.\n\nYes."), (A, "Hello")]),
    "opened by the prompt": (QWEN, "<|assistant|>\n<think>\n", "Hm.</think>\n\nHello", [(T, "Hm."), (A, "Hello")]),
    "closed by the prompt": (QWEN, "<think>\n\n</think>\n\n", "Hello", [(A, "Hello")]),
    "no thought": (QWEN, "", "\n<think>\n\n</think>\n\nHello", [(A, "Hello")]),
    "unclosed thought": (QWEN, "", "<think>\nHm. And", [(T, "Hm. And")]),
    "a stray end": (QWEN, "", "</think>\nHello", [(A, "Hello")]),
    "opened twice": (QWEN, "<think>", "<think>Hm.</think>Hello", [(T, "Hm."), (A, "Hello")]),
    "qwen call": (
        QWEN, "", f'<think>I ask.</think>\n\nWait.\n<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>',
        [(T, "I ask."), (A, "Wait.\n"), (C, WEATHER)],
    ),
    "two calls": (
        QWEN, "", '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "b"}\n</tool_call>\n',
        [(C, "a\n{}"), (C, "b\n{}")],
    ),
    "qwen coder": (
        QWEN, "", "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich\n</parameter>\n</function>\n</tool_call>",
        [(C, WEATHER)],
    ),
    "unclosed call": (QWEN, "", 'So:\n<tool_call>\n{"name": "get_w', [(A, "So:\n"), (C, '\n{"name": "get_w')]),
    "glm": (
        QWEN, "<think>", "I ask.</think><tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n</tool_call>",
        [(T, "I ask."), (C, WEATHER)],
    ),
    "marks in code": (
        QWEN, "", "Write:\n```\n<tool_call>\n<think>\n```\nand `<think>` or `<tool_call>`.",
        [(A, "Write:\n```\n<tool_call>\n<think>\n```\nand `<think>` or `<tool_call>`.")],
    ),
    "a thought's mark in the midst of an answer": (QWEN, "", "Use <think> and </think>.", [(A, "Use <think> and </think>.")]),
    "code in a thought": (QWEN, "", "<think>\n```\nx\n</think>\nHello", [(T, "```\nx"), (A, "Hello")]),
    "harmony": (
        GPT_OSS, "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
        [(T, "Hm."), (A, "Hello")],
    ),
    "harmony, preamble and call": (
        GPT_OSS, "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
        [(T, "Hm."), (A, "I look."), (C, WEATHER)],
    ),
    "harmony, who it is for comes first": (
        GPT_OSS, "<|start|>assistant", f" to=functions.get_weather<|channel|>commentary json<|message|>{JSON}", [(C, WEATHER)],
    ),
    "harmony, unclosed": (GPT_OSS, "<|start|>assistant", "<|channel|>analysis<|message|>Hm", [(T, "Hm")]),
    "harmony, marks as text": (GPT_OSS, "<|start|>assistant", "<|channel|>final<|message|><think>", [(A, "<think>")]),
    "harmony, no header": (GPT_OSS, "<|start|>assistant", "Hello", [(A, "Hello")]),
    "gemma": (GEMMA, "<|turn>model\n", "<|channel>thought\nHm.\n<channel|>Hello", [(T, "Hm."), (A, "Hello")]),
    "gemma, opened by the prompt": (GEMMA, "<|channel>thought\n", "Hm.\n<channel|>Hello", [(T, "Hm."), (A, "Hello")]),
    "gemma, closed by the prompt": (GEMMA, "<|channel>thought\n<channel|>", "Hello", [(A, "Hello")]),
    "gemma call": (GEMMA, "", "<|tool_call>call:get_weather{city:Zürich}<tool_call|>", [(C, "get_weather\n{city:Zürich}")]),
    "deepseek r1": (
        DEEPSEEK, "<think>\n",
        "Hm.\n</think>\n\nSo.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [(T, "Hm."), (A, "So."), (C, WEATHER)],
    ),
    "deepseek v3.1": (
        DEEPSEEK, "",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        f"{JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [(C, "a\n{}"), (C, WEATHER)],
    ),
    "kimi": (
        KIMI, "",
        "<think>Hm.</think>So.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>",
        [(T, "Hm."), (A, "So."), (C, WEATHER)],
    ),
    "mistral, a list": (
        MISTRAL, "", f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {JSON}, "id": "x"}}, {{"name": "b", "arguments": {{}}}}]',
        [(C, WEATHER), (C, "b\n{}")],
    ),
    "mistral, one after another": (
        MISTRAL, "", f"[THINK]Hm.[/THINK]So.[TOOL_CALLS]get_weather[ARGS]{JSON}[TOOL_CALLS]b[CALL_ID]9[ARGS]{{}}",
        [(T, "Hm."), (A, "So."), (C, WEATHER), (C, "b\n{}")],
    ),
    "minimax": (
        MINIMAX, "<think>\n",
        'Hm.</think>\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Zürich</parameter>\n</invoke>\n'
        '<invoke name="b">\n</invoke>\n</minimax:tool_call>',
        [(T, "Hm."), (C, WEATHER), (C, "b\n")],
    ),
    "deepseek v4": (
        DEEPSEEK_V4, "<think>",
        'Hm.</think>So.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Zürich</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        '<｜DSML｜invoke name="b">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        [(T, "Hm."), (A, "So.\n\n"), (C, WEATHER), (C, "b\n")],
    ),
    "lfm": (LFM, "", '<|tool_call_start|>[get_weather(city="Zürich")]<|tool_call_end|>', [(C, 'get_weather\n(city="Zürich")')]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_marks_that_are_tokens(case: tuple[tuple[str, ...], str, str, Spans], tmp_path: Path) -> None:
    marks, prompt, answer, expected = case
    assert _split(tmp_path, marks, answer, prompt) == expected


@pytest.mark.parametrize("name", [name for name in CASES if "harmony" not in name])
def test_marks_that_come_letter_by_letter(name: str, tmp_path: Path) -> None:
    """As of vocabularies without such tokens, whose template writes them."""
    marks, prompt, answer, expected = CASES[name]
    assert _split(tmp_path, (), answer, prompt, template=" ".join(marks)) == expected


def test_marks_around_a_special_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is none of the answer's text then."""
    marks, prompt, answer, expected = CASES["deepseek v4"]
    monkeypatch.setitem(globals(), "SPECIAL", {*SPECIAL, "｜DSML｜"})
    assert _split(tmp_path, marks, answer, prompt) == expected


def test_what_is_shown_is_never_taken_back(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, ())
    form = find_form("<think></think><tool_call></tool_call>", tokenizer.token_id, tokenizer.is_special)
    reader = AnswerReader(tokenizer, form, [])
    shown = ""
    for number in tokenizer.encode("a < b <too <tool_ <tool_call>x</tool_call>"):
        shown += "".join(piece.text for piece in reader.add(number))
        assert "a < b <too <tool_ ".startswith(shown) or shown == "a < b <too <tool_ x\n"


def test_a_vocabulary_without_marks_passes_every_text_on(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, ())
    assert find_form("", tokenizer.token_id, tokenizer.is_special) == Form({}, {}, {}, ())
    text = "<think>x</think>[TOOL_CALLS]<|channel|>final<|message|>"
    assert _split(tmp_path, (), text) == [(A, text)]


def test_stop_strings_end_what_is_said_and_nothing_else(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, QWEN)
    form = find_form("", tokenizer.token_id, tokenizer.is_special)
    reader = AnswerReader(tokenizer, form, [], stops=["END"])
    said: Spans = []
    for number in tokenizer.encode("<think>not the END yet</think>one E two END three"):
        said += [(piece.kind, piece.text) for piece in reader.add(number)]
        if reader.is_stopped:
            break
    assert "".join(text for kind, text in said if kind is T) == "not the END yet"
    assert "".join(text for kind, text in said if kind is A) == "one E two "


def test_a_half_character_before_a_mark_does_not_hide_what_follows(tmp_path: Path) -> None:
    tokenizer = _tokenizer(tmp_path, QWEN)
    form = find_form("", tokenizer.token_id, tokenizer.is_special)
    half, end = tokenizer.encode("🙂")[:2], tokenizer.encode("</think>é")
    assert _read(AnswerReader(tokenizer, form, tokenizer.encode("<think>")), [*half, *end]) == [(T, "\ufffd"), (A, "é")]


def test_arguments_that_are_text_are_read(tmp_path: Path) -> None:
    call = json.dumps([{"function": {"name": "get_weather", "arguments": JSON}}])
    assert _split(tmp_path, MISTRAL, f"[TOOL_CALLS]{call}") == [(C, WEATHER)]
