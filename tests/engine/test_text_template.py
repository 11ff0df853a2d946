"""Chat templates: where they are found, what is said of broken ones, and that a hostile one takes little time and memory."""

import json
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from engine.errors import EngineError
from engine.protocol import ChatMessage
from engine.text import renderer
from engine.text.template import ChatTemplate
from tests.helpers.tiny import write_text_files

HI = [ChatMessage("user", "hi")]


def _template(folder: Path, template: object, **more: object) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "bos_token": {"content": "<s>"}} | more)
    )
    return ChatTemplate(folder)


def test_templates_get_what_published_ones_use(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}{% generation %}{% if loop.first %}{{ m['content'] | tojson }}{% endif %}"
        "{% endgeneration %}{% break %}{% endfor %}"
    )
    assert _template(tmp_path, source).render([ChatMessage("user", 'say "é"')]) == '<s>"say \\"é\\""'


def test_special_tokens_of_an_older_release_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<no>", "eos_token": {"content": "</s>"}}))
    template = _template(tmp_path, "{{ bos_token }}{{ eos_token }}")
    assert template.render(HI) == "<s></s>"
    assert template.eos_token == "</s>"


def test_the_template_for_chat_is_found_in_each_of_its_places(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "of a list"}]
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "of a processor"}))
    assert _template(tmp_path, None).render(HI) == "of a processor"
    assert _template(tmp_path, named).render(HI) == "of a list"
    assert _template(tmp_path, {"rag": "no", "default": "of a table"}).render(HI) == "of a table"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("no")
    assert _template(tmp_path, "from the config").render(HI) == "from the config"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert _template(tmp_path, "from the config").render(HI) == "from the file"


@pytest.mark.parametrize("template", [["x"], 5, None, [{"name": "rag"}], {"rag": "x"}])
def test_no_usable_template_is_named(tmp_path: Path, template: object) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("no")
    with pytest.raises(EngineError, match=r"no chat template .* others for tool_use"):
        _template(tmp_path, template)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("a\n\n{% if %}", 3),
        ("a\n{{ 1 / 0 }}", 2),
        ("{% macro m() %}\n\n{{ 'x' + 1 }}{% endmacro %}\n{{ m() }}", 3),
        ("{{ messages\n\n| nonsense }}", 3),
        ("{{ ''.__class__.__mro__ }}", 1),
        ("\n{{ undefined_function() }}", 2),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", 1),
        ("{{ namespace(__init__=1) }}", 1),
    ],
)
def test_a_broken_template_is_named_with_file_and_line(tmp_path: Path, source: str, line: int) -> None:
    (tmp_path / "chat_template.jinja").write_text(source)
    with pytest.raises(EngineError, match=rf"chat template .*chat_template\.jinja, line {line}: \w+"):
        ChatTemplate(tmp_path).render(HI)


def test_a_refused_conversation_is_told_in_the_templates_words(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="roles must alternate") as caught:
        _template(tmp_path, "{{ raise_exception('roles must alternate') }}").render(HI)
    assert caught.value.code == "prompt.refused"


def test_a_template_that_makes_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"chat_template in tokenizer_config\.json\) makes nothing"):
        _template(tmp_path, "{# all of it is a comment #}\n").render(HI)


HOSTILE = [
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:>99000000000}'.format(1) }}",
    "{{ '%999999999d' % 3 }}",
    "{{ '%999999999d' | format(3) }}",
    "{{ 'x'.center(10 ** 9) }}",
    "{{ 'x' | center(999999999) }}",  # folded while it is compiled
    "{{ 'x' | indent(width=999999999, first=true) }}",
    "{{ 'a' * 10 ** 9 }}",
    "{{ ['x'] * 10 ** 10 }}",
    "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "{% for n in range(1000) %}{{ 'x' * 100000 }}{% endfor %}",
    "{{ range(10 ** 12) | list }}",
    "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ lipsum(n=10 ** 8) }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 100_000 + " }}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_template_is_one_sentence(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_SECONDS", 0.4)
    monkeypatch.setattr(renderer, "_BYTES", 128 << 20)
    with pytest.raises(EngineError, match="chat template"):
        _template(tmp_path, source).render(HI)


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_after_a_hostile_conversation_the_next_one_is_rendered(tmp_path: Path) -> None:
    source = "{% if messages[0].content == 'evil' %}{{ '{:>99000000000}'.format(1) }}{% endif %}fine"
    template = _template(tmp_path, source)
    with pytest.raises(EngineError, match=r"(?i)memory"):
        template.render([ChatMessage("user", "evil")])
    assert template.render(HI) == "fine"


def test_no_process_is_left_behind(tmp_path: Path) -> None:
    before = _children()
    template = _template(tmp_path, "fine")
    assert _children() - before
    del template
    assert not _children() - before


@pytest.mark.parametrize("end", [psutil.Process.kill, psutil.Process.terminate])
def test_a_process_that_somebody_ended_is_started_again(tmp_path: Path, end: Callable[[psutil.Process], None]) -> None:
    before = _children()
    template = _template(tmp_path, "fine")
    for number in _children() - before:
        child = psutil.Process(number)
        end(child)
        child.wait()
    with pytest.raises(EngineError, match="ended"):
        template.render(HI)
    assert template.render(HI) == "fine"


def test_reasoning_of_earlier_answers_is_handed_over_with_typed_tokens_marked(tmp_path: Path) -> None:
    write_text_files(tmp_path)
    source = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.content }};{% endfor %}"
    said = [ChatMessage("user", "hi"), ChatMessage("assistant", "yes", "I <s> think")]
    text = _template(tmp_path, source).render(said)
    assert text.replace("\ufdd0", "") == "||hi;I <s> think|I <s> think|yes;"
    assert "<s>" not in text
