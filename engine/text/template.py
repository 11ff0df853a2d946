"""A conversation as the model was taught to read it: the checkpoint's own chat template, run in jinja2's sandbox.

A template is a foreign program: it may not reach out of the sandbox, run for ever, or make texts of any length.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.checkpoint.index import read_json
from engine.errors import EngineError
from engine.protocol import ChatMessage
from engine.text.special import mark, special_tokens

_SECONDS = 5.0  # for one conversation; the longest takes some tens of milliseconds
_MOST_TIMES = 16  # that a conversation's text may come to stand in its rendering
_LONGEST = 1 << 20  # characters that a product may have, or its value

TraceFunction = Callable[[FrameType, str, Any], Any]


class ChatTemplate:
    """Renders conversations to text with the opening of the answer."""

    def __init__(self, folder: Path) -> None:
        """Raises `EngineError` where there is no template or it does not parse."""
        config_file = folder / "tokenizer_config.json"
        config = read_json(config_file) if config_file.is_file() else {}
        self._name = folder.name
        self._special = {key: _token_text(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
        self._tokens = _special_tokens(folder)
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        for name in ("center", "indent", "format"):
            environment.filters[name] = _bounded(environment.filters[name])
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
        turns = [{"role": message.role, "content": mark(message.content, self._tokens)} for message in messages]
        try:
            with _Deadline(_SECONDS):
                text = self._template.render(messages=turns, add_generation_prompt=True, **self._special)
            if len(text) > _LONGEST + _MOST_TIMES * sum(len(turn["content"]) for turn in turns):
                raise TemplateError(f"it makes {len(text)} characters of this conversation")
            return text
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


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses products that could be texts or numbers of any size."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_widths(left)
        factors = [value for value in (left, right) if isinstance(value, int)]
        if operator == "**" or len(factors) < 2:
            sizes = [len(value) for value in (left, right) if isinstance(value, str | list | tuple)]
            if max((abs(value) for value in factors), default=0) * max(sizes, default=1) > _LONGEST:
                raise TemplateError(f"{operator} makes more than {_LONGEST} characters")
        return super().call_binop(context, operator, left, right)


def _check_widths(form: str) -> None:
    """Of a format, which fills up to any number of characters that it names."""
    if any(int(width[:20]) > _LONGEST for width in re.findall(r"\d+", form)):
        raise TemplateError(f"a format fills more than {_LONGEST} characters")


def _bounded(fill: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that fills up to a number of characters that it is given, or repeats a text."""

    @wraps(fill)
    def checked(value: Any, *arguments: Any, **named: Any) -> Any:
        for one in (*arguments, *named.values()):
            if isinstance(one, int) and one > _LONGEST:
                raise TemplateError(f"a filter fills more than {_LONGEST} characters")
        if isinstance(value, str) and fill.__name__ == "do_format":
            _check_widths(value)
        return fill(value, *arguments, **named)

    return checked


class _Deadline:
    """Ends whatever Python this thread runs within it once time is up, loops included. Raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._end, self._before = time.monotonic() + self._seconds, sys.gettrace()
        sys.settrace(self._watch)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _watch(self, frame: FrameType, event: str, argument: Any) -> TraceFunction:
        if time.monotonic() > self._end:
            raise TimeoutError(f"it ran for more than {self._seconds:g} s")
        return self._watch


def _special_tokens(folder: Path) -> tuple[str, ...]:
    try:
        return special_tokens((folder / "tokenizer.json").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):  # the tokenizer says so
        return ()


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
