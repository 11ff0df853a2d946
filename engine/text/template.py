"""A conversation as the model was taught to read it, by the checkpoint's own chat template. Knows where templates are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.index import read_json
from engine.checkpoint.naming import model_name
from engine.config import NO_REASONING, Reasoning
from engine.errors import EngineError
from engine.protocol import ChatMessage, ReasoningChoices
from engine.text.reasoning import Switches, find_switches
from engine.text.renderer import Renderer, TemplateFault
from engine.text.special import mark
from engine.text.vocabulary import special_texts

_FILE, _CONFIG, _MAP = "chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"
_MORE = "additional_chat_templates"
_DEFAULT = "default"  # of named templates, the one for chat


@dataclass(frozen=True, slots=True)
class _Source:
    text: str
    place: str  # for a person: the file, and what of it


class ChatTemplate:
    """Renders conversations to text with the opening of the answer."""

    def __init__(self, folder: Path) -> None:
        """Raises `EngineError` where there is no template or it does not compile."""
        config = _settings(folder / _CONFIG)
        self._name = model_name(folder)
        self._special = _special(config, _settings(folder / _MAP))
        self._tokens = special_texts(folder)
        self._source = _source(folder, config)
        try:
            self._renderer = Renderer(self._source.text)
        except TemplateFault as fault:
            raise self._error(fault) from fault
        self._switches: Switches | None = None

    @property
    def eos_token(self) -> str:
        return self._special.get("eos_token", "")

    @property
    def source(self) -> str:
        return self._source.text

    @property
    def reasoning(self) -> ReasoningChoices:
        """What a person may choose of the model's thinking."""
        return self._found_switches().choices

    def render(self, messages: Sequence[ChatMessage], reasoning: Reasoning = NO_REASONING) -> str:
        """Raises `EngineError` where the template refuses the conversation, with its own words, or does not take the wish."""
        turns = [self._turn(message) for message in messages]
        wished = {} if reasoning == NO_REASONING else self._found_switches().variables(reasoning, self._name)
        try:
            text = self._render(turns, wished)
        except TemplateFault as fault:
            if fault.is_refusal:
                told = f"{self._name} does not take this conversation: {fault}."
                raise EngineError("prompt.refused", told, "Start a new chat, or write it otherwise.") from fault
            raise self._error(fault) from fault
        if not text.strip():
            told = f"The chat template of {self._name} ({self._source.place}) makes nothing of this conversation."
            raise EngineError("prompt.empty", told, "Get it again, or another release.")
        return text

    def _turn(self, message: ChatMessage) -> dict[str, str]:
        turn = {"role": message.role, "content": mark(message.content, self._tokens)}
        if message.reasoning:  # under both names that templates know, as transformers does
            turn["reasoning_content"] = turn["thinking"] = mark(message.reasoning, self._tokens)
        return turn

    def _render(self, turns: Sequence[dict[str, str]], wished: dict[str, Any]) -> str:
        given = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        return self._renderer.render(self._special | wished | given)

    def _found_switches(self) -> Switches:
        if self._switches is None:
            question = [{"role": "user", "content": "Hi"}]
            self._switches = find_switches(self._renderer.variables, lambda wished: self._render(question, wished))
        return self._switches

    def _error(self, fault: TemplateFault) -> EngineError:
        line = "" if fault.line is None else f", line {fault.line}"
        text = f"The chat template of {self._name} failed ({self._source.place}{line}: {fault})."
        return EngineError("model.bad_template", text, "Get it again, or another release.")


def _settings(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def _special(config: dict[str, Any], names: dict[str, Any]) -> dict[str, str]:
    """Those that are there; older releases have some of them in a file of their own."""
    found = {key: _token_text(value) for key, value in (names | config).items() if key.endswith("_token")}
    return {key: text for key, text in found.items() if text is not None}


def _token_text(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _source(folder: Path, config: dict[str, Any]) -> _Source:
    """The template for chat: a file of its own comes before what is inside another."""
    for name in (_FILE, f"{_MORE}/{_DEFAULT}.jinja"):
        if (folder / name).is_file():
            return _Source(_read(folder / name), name)
    for name, values in ((_CONFIG, config), ("chat_template.json", _settings(folder / "chat_template.json"))):
        template = values.get("chat_template")
        if isinstance(template, list):
            named = [item for item in template if isinstance(item, dict)]
            template = next((item.get("template") for item in named if item.get("name") == _DEFAULT), None)
        elif isinstance(template, dict):
            template = template.get(_DEFAULT)
        if isinstance(template, str):
            return _Source(template, f"chat_template in {name}")
    others = sorted(file.stem for file in (folder / _MORE).glob("*.jinja"))
    beside = f"; there are others for {', '.join(others)}" if others else ""
    raise EngineError(
        "model.missing_template",
        f"{model_name(folder)} has no chat template ({_FILE}, or chat_template in {_CONFIG}{beside}).",
        "It may be a base model: get the instruct or chat release.",
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError("model.bad_template", f"{file} cannot be read: {error}.", "Get it again.") from error
