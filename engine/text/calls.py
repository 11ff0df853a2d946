"""The call of a tool as each family writes it, to the words that a person reads: its name in one line, then its arguments."""

import json
import re
from collections.abc import Iterator

_DSML = "｜DSML｜"  # within each of DeepSeek V4's marks
_NAME = r"[\w.\-]+"
_FORMS = tuple(  # each with a name and the arguments as they are written
    re.compile(form, re.DOTALL)
    for form in (
        rf"\s*(?:function)?<｜tool▁sep｜>(?P<name>{_NAME})\s*```(?:json)?\s*(?P<rest>.*?)\s*```\s*",  # DeepSeek V3, R1
        rf"\s*(?P<name>{_NAME})<｜tool▁sep｜>(?P<rest>.*)",  # DeepSeek V3.1
        rf"\s*(?:functions\.)?(?P<name>{_NAME}):\d+\s*<\|tool_call_argument_begin\|>(?P<rest>.*)",  # Kimi
        rf"\s*(?P<name>{_NAME})(?:\[CALL_ID\]\w*)?\[ARGS\](?P<rest>.*)",  # Mistral
        rf"\s*call:(?P<name>{_NAME})(?P<rest>\{{.*\}})\s*",  # Gemma 4
        rf"\s*<function=(?P<name>{_NAME})>(?P<rest>.*?)(?:</function>\s*)?",  # Qwen Coder and 3.5
        rf"\s*<invoke name=\"(?P<name>{_NAME})\">(?P<rest>.*?)(?:</invoke>\s*)?",  # MiniMax, DeepSeek V4
        rf"\s*(?P<name>{_NAME})\s*(?P<rest>(?:<arg_key>.*)?)",  # GLM
        rf"\s*\[?(?P<name>{_NAME})(?P<rest>\(.*\))\]?\s*",  # LFM2
    )
)
_PAIRS = tuple(
    re.compile(form, re.DOTALL)
    for form in (
        r"<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</parameter>",
        r"<parameter name=\"(?P<key>[^\"]+)\"(?: string=\"\w+\")?>\n?(?P<value>.*?)\n?</parameter>",
        r"<arg_key>\s*(?P<key>.*?)\s*</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
    )
)


def call_words(raw: str, recipient: str = "") -> Iterator[str]:
    """Of the text between the marks, which may hold several calls. One in no known form is shown as it is, without a name.

    `recipient` is the name, where the marks have told it already.
    """
    if recipient:
        yield f"{recipient}\n{_arguments(raw)}"
        return
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        plain = raw.replace(_DSML, "").strip()
        yield from (_written(part) for part in re.split(r"(?<=</invoke>)\s*(?=<invoke )", plain) if part)
        return
    for call in found if isinstance(found, list) else [found]:
        named = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(named, dict) and isinstance(named.get("name"), str):
            given = named.get("arguments", named.get("parameters", {}))
            yield f"{named['name']}\n{_arguments(given) if isinstance(given, str) else _pretty(given)}"
        else:
            yield f"\n{_pretty(call)}"


def _written(raw: str) -> str:
    found = next((match for form in _FORMS if (match := form.fullmatch(raw))), None)
    if found is None:
        return f"\n{raw}"
    pairs = {pair["key"]: pair["value"] for form in _PAIRS for pair in form.finditer(found["rest"])}
    return f"{found['name']}\n{_pretty(pairs) if pairs else _arguments(found['rest'])}"


def _arguments(text: str) -> str:
    try:
        return _pretty(json.loads(text))
    except (ValueError, RecursionError):
        return text.strip()


def _pretty(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
