"""Chat templates as published, rendered by transformers and by the engine: the same bytes, or neither takes the conversation."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import ChatMessage
from engine.text.renderer import Renderer, TemplateFault
from engine.text.template import ChatTemplate
from tests.helpers.packages import llama_cpp_models, npm_tokenizer

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place <now> & later, \"quoted\", in °C.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Zürich, 東京"},
                "days": {"type": "integer", "default": 1, "enum": [1, 2, 3]},
                "units": {"type": ["string", "null"], "enum": ["c", "f"]},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}  # fmt: skip


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(text: str, thought: str = "", call: bool = False) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        said |= {"reasoning_content": thought, "thinking": thought}
    if call:
        function = {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2, "units": None}}
        said["tool_calls"] = [{"id": "call00001", "type": "function", "function": function}]
    return said


_SYSTEM = {"role": "system", "content": "Be brief.\n  Answer in <b>English</b>."}
_RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "get_weather", "content": '{"temperature": 21.5, "sky": "☀"}'}
_TURNS = [_user("Hi"), _said("Hello 🙂"), _user("Why?"), _said("Because."), _user("Thanks\n\n")]
_TOOL_TURNS = [_user("Weather in Zürich?"), _said("", call=True), _RESULT]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "question": {"messages": [_user("What is 2 < 3 & 'so' on?")]},
    "empty": {"messages": []},
    "empty question": {"messages": [_user("")]},
    "system": {"messages": [_SYSTEM, _user("Hi")]},
    "system alone": {"messages": [_SYSTEM]},
    "turns": {"messages": [_SYSTEM, *_TURNS]},
    "two questions": {"messages": [_user("One"), _user("Two")]},
    "answer first": {"messages": [_said("Hello"), _user("Hi")]},
    "code": {"messages": [_user("```\n{% if x %}{{ y }}<think></tool_call>\n```"), _said("`<think>`\n"), _user("[INST]")]},
    "reasoning": {"messages": [_user("Hi"), _said("Yes.", "Let me think.\nTwice."), _user("Sure?")]},
    "thought in the text": {"messages": [_user("Hi"), _said("<think>\nhm\n</think>\n\nYes."), _user("Sure?")]},
    "tools": {"messages": [_SYSTEM, _user("Weather?")], "tools": [_WEATHER]},
    "tool call": {"messages": [_user("Weather?"), _said("", call=True)], "tools": [_WEATHER]},
    "tool result": {"messages": _TOOL_TURNS, "tools": [_WEATHER]},
    "tool result, thought": {"messages": [_user("?"), _said("", "I ask.", call=True), _RESULT], "tools": [_WEATHER]},
    "after tools": {"messages": [*_TOOL_TURNS, _said("21.5 °C."), _user("And tomorrow?")], "tools": [_WEATHER]},
    "thinking on": {"messages": _TURNS, "enable_thinking": True, "thinking": True},
    "thinking off": {"messages": _TURNS, "enable_thinking": False, "thinking": False},
    "effort": {"messages": _TURNS, "reasoning_effort": "high", "enable_thinking": True},
    "effort refused": {"messages": _TURNS, "reasoning_effort": "medium"},
    "long": {"messages": [_user("word " * 20_000)]},
    "many": {"messages": [_SYSTEM, *([_user("Hi"), _said("Hello")] * 300), _user("Bye")]},
}


def _templates() -> list[Path]:
    return sorted((llama_cpp_models() / "templates").glob("*.jinja"))


def _theirs(source: str, given: dict[str, Any]) -> str | None:
    """None where it refuses."""
    from transformers.utils.chat_template_utils import render_jinja_template

    options = {"chat_template": source, "add_generation_prompt": True} | _SPECIAL | json.loads(json.dumps(given))
    try:
        rendered: Any = render_jinja_template([options.pop("messages")], **options)
    except Exception:  # whatever a template raises
        return None
    return str(rendered[0][0])


def _ours(renderer: Renderer, given: dict[str, Any]) -> str | None:
    try:
        return renderer.render({"tools": None, "documents": None, "add_generation_prompt": True} | _SPECIAL | given)
    except TemplateFault:
        return None


def test_every_published_template_gives_the_same_bytes() -> None:
    files, refused = _templates(), 0
    assert len(files) > 60
    for file in files:
        source = file.read_text(encoding="utf-8")
        renderer = Renderer(source)
        for name, given in CONVERSATIONS.items():
            theirs = _theirs(source, given)
            refused += theirs is None
            assert _ours(renderer, given) == theirs, f"{file.stem}: {name}"
    assert refused < len(files) * len(CONVERSATIONS) / 5, "most of them are taken by both"


@pytest.mark.parametrize("name", ["qwen3", "deepseek_v3", "llama3", "gptoss"])
@pytest.mark.parametrize("thought", ["", "Let me think."])
def test_a_model_folder_gives_what_its_own_tokenizer_gives(name: str, thought: str, tmp_path: Path) -> None:
    """Special tokens, the template's place and the names of reasoning included."""
    from transformers import AutoTokenizer

    for file in npm_tokenizer(name).glob("*.json"):
        shutil.copy(file, tmp_path / file.name)
    if name == "gptoss":  # that package has no template
        shutil.copy(llama_cpp_models() / "templates/openai-gpt-oss-120b.jinja", tmp_path / "chat_template.jinja")
    reference = AutoTokenizer.from_pretrained(tmp_path)
    turns = [_SYSTEM, _user("Hi"), {"role": "assistant", "content": "Yes."}, _user("Sure?")]
    theirs = [turn | ({"reasoning_content": thought} if thought and turn["role"] == "assistant" else {}) for turn in turns]
    messages = [ChatMessage(t["role"], t["content"], thought if t["role"] == "assistant" else "") for t in turns]
    expected = reference.apply_chat_template(theirs, add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(tmp_path).render(messages) == expected
