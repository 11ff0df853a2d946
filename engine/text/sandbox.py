"""A chat template compiled and rendered: the child's half, `python -m engine.text.sandbox`, started by `engine.text.renderer`.

One JSON object per line each way: first {"source", "seconds"}, then the variables of one rendering after another. The sandbox
and what it offers are those of transformers (utils/chat_template_utils.py), since templates are written against it.
"""

import faulthandler
import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TextIO

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MOST_TIMES = 16  # that a conversation's text may come to stand in its rendering
_LONGEST = 1 << 20  # characters beyond that
_FILE = "<template>"  # what jinja2 calls the file of a template that has none


class RefusedError(TemplateError):
    """The template's own objection to a conversation."""


class _Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """One that takes no name with which Python's own insides could be reached."""

    def __init__(*args: Any, **named: Any) -> None:
        for name in dict(*args[1:], **named):
            _check_name(name)
        Namespace.__init__(*args, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no {name!r}")


def compiled(source: str) -> tuple[Template, nodes.Template]:
    """The template and its syntax tree. Raises whatever jinja2 and Python's compiler raise."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    environment.globals["namespace"] = _Namespace
    return environment.from_string(source), environment.parse(source)


def facts(tree: nodes.Template) -> dict[str, Any]:
    """Every variable that is read anywhere, with the texts that stand beside it in a comparison, a choice or a default."""
    variables: dict[str, set[str]] = {name.name: set() for name in tree.find_all(nodes.Name) if name.ctx == "load"}
    beside = (nodes.Compare, nodes.CondExpr, nodes.Filter, nodes.Assign)
    for node in tree.find_all(beside):
        texts = {const.value for const in node.find_all(nodes.Const) if isinstance(const.value, str)}
        for name in node.find_all(nodes.Name):
            if name.name in variables:
                variables[name.name] |= texts
    return {name: sorted(texts) for name, texts in variables.items()}


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise RefusedError(message)


def _fault(error: BaseException) -> dict[str, Any]:
    """What went wrong, and in which line of the template where that is known."""
    line = getattr(error, "lineno", None)
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == _FILE:
            line = step.tb_lineno
        step = step.tb_next
    if isinstance(error, RefusedError):
        return {"refused": str(error)}
    return {"error": f"{type(error).__name__}: {error}"[:500], "line": line}


def _rendered(template: Template, request: str) -> str:
    text = template.render(**json.loads(request))
    if len(text) > _LONGEST + _MOST_TIMES * len(request):
        raise TemplateError(f"it makes {len(text)} characters of this conversation")
    return text


def _answer(out: TextIO, seconds: float, act: Callable[[], dict[str, Any]]) -> None:
    faulthandler.dump_traceback_later(2 * seconds, exit=True)  # for a child whose parent has gone meanwhile
    try:
        reply = json.dumps(act())
    except BaseException as error:  # templates are foreign programs: any exception may come out of one
        reply = json.dumps(_fault(error))
    faulthandler.cancel_dump_traceback_later()
    out.write(reply + "\n")
    out.flush()


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    out.write("{}\n")
    out.flush()
    first = json.loads(sys.stdin.readline())
    seconds: float = first["seconds"]
    template: list[Template] = []

    def begin() -> dict[str, Any]:
        made, tree = compiled(first["source"])
        template.append(made)
        return {"variables": facts(tree)}

    _answer(out, seconds, begin)
    for line in sys.stdin:
        _answer(out, seconds, lambda given=line: {"text": _rendered(template[0], given)})  # type: ignore[misc]


if __name__ == "__main__":
    main()
