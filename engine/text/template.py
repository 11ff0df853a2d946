"""A conversation as the model was taught to read it: the checkpoint's own chat template, run in jinja2's sandbox."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.checkpoint.index import read_json
from engine.errors import EngineError
from engine.protocol import ChatMessage


class ChatTemplate:
    """Renders conversations to text with the opening of the answer."""

    def __init__(self, folder: Path) -> None:
        """Raises `EngineError` where there is no template or it does not parse."""
        config_file = folder / "tokenizer_config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        self._name = folder.name
        self._special = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        try:
            self._template = environment.from_string(_source(folder, config))
        except EngineError:
            raise
        except Exception as error:  # a broken template may also overflow the parser or Python's own compiler
            raise self._error(error) from error

    @property
    def eos_token(self) -> str:
        return self._special["eos_token"]

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Raises `EngineError` where the template refuses the conversation, with its own words."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._special)
        except _RefusedError as error:
            text = f"{self._name} does not take this conversation: {error}."
            raise EngineError("prompt.refused", text, "Start a new chat, or write it otherwise.") from error
        except Exception as error:  # templates are foreign programs: any exception may come out of one
            raise self._error(error) from error

    def _error(self, error: Exception) -> EngineError:
        return EngineError(
            "model.bad_template",
            f"The chat template of {self._name} failed ({type(error).__name__}: {error}).",
            "Get tokenizer_config.json again, or another release.",
        )


def _source(folder: Path, config: dict[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            text = f"{file.name} of {folder.name} cannot be read: {error}."
            raise EngineError("model.bad_template", text, "Get it again.") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # named templates; "default" is the one for chat
        named = [item for item in template if isinstance(item, dict)]
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    if not isinstance(template, str):
        raise EngineError(
            "model.missing_template",
            f"{folder.name} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json).",
            "It may be a base model: get the instruct or chat release.",
        )
    return template


def _token_text(token: Any) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


class _RefusedError(TemplateError):
    """The template's own objection to a conversation."""


def _raise(message: str) -> None:
    raise _RefusedError(message)
