"""What may be chosen of a model's thinking, by its own template: only what it takes and what makes a difference."""

import json
from pathlib import Path

import pytest

from engine.config import Reasoning
from engine.errors import EngineError
from engine.protocol import ChatMessage, ReasoningChoices
from engine.text.template import ChatTemplate
from tests.helpers.packages import llama_cpp_models

HI = [ChatMessage("user", "hi")]
LINE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _template(folder: Path, source: str) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    return ChatTemplate(folder)


@pytest.mark.parametrize(
    ("source", "choices"),
    [
        ("", ReasoningChoices()),
        ("{{ enable_thinking }}", ReasoningChoices(can_switch=True)),
        ("{% if enable_thinking %}<think>{% endif %}", ReasoningChoices(can_switch=True, is_on=False)),
        ("{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}", ReasoningChoices(can_switch=True, is_on=True)),
        ("{% set enable_thinking = true %}{% if enable_thinking %}<think>{% endif %}", ReasoningChoices()),
        ("{% if enable_thinking and tools %}<think>{% endif %}", ReasoningChoices()),
        ("{{ messages[0].thinking }}", ReasoningChoices()),
        ("{{ reasoning_effort | default('medium') }}", ReasoningChoices(("low", "medium", "high"), "medium")),
        ("{{ 'max' if reasoning_effort == 'max' else '' }}", ReasoningChoices(("max",))),
        (
            "{% if reasoning_effort not in ['low', 'high'] %}{{ raise_exception('no') if reasoning_effort }}{% endif %}{{ reasoning_effort }}",
            ReasoningChoices(("low", "high")),
        ),
        ("{{ 'a' if reasoning_effort in ['low', 'minimal'] else 'b' }}", ReasoningChoices(("low",))),
        (
            "{{ '<think>' if thinking }}{{ 'deep' if thinking and reasoning_effort == 'high' }}",
            ReasoningChoices(("high",), can_switch=True, is_on=False),
        ),
    ],
)  # fmt: skip
def test_only_what_makes_a_difference_is_offered(source: str, choices: ReasoningChoices, tmp_path: Path) -> None:
    assert _template(tmp_path, LINE + source).reasoning == choices


PUBLISHED = {  # as their model cards and the templates' own words say
    "openai-gpt-oss-120b": ReasoningChoices(("low", "medium", "high"), "medium"),
    "tencent-Hy3": ReasoningChoices(("no_think", "low", "high"), "no_think"),
    "upstage-Solar-Open-100B": ReasoningChoices(("low", "high"), "high"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ReasoningChoices(("high", "max"), "", can_switch=True, is_on=False),
    "deepseek-ai-DeepSeek-V3.1": ReasoningChoices(can_switch=True, is_on=False),
    "Qwen-Qwen3-0.6B": ReasoningChoices(can_switch=True, is_on=True),
    "Qwen3.5-4B": ReasoningChoices(can_switch=True, is_on=True),
    "GLM-4.7-Flash": ReasoningChoices(can_switch=True, is_on=True),
    "google-gemma-4-31B-it": ReasoningChoices(can_switch=True, is_on=False),
    "Kimi-K2-Thinking": ReasoningChoices(),
    "MiniMax-M2": ReasoningChoices(),
    "mistralai-Mistral-Nemo-Instruct-2407": ReasoningChoices(),
    "Qwen3-Coder": ReasoningChoices(),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates(name: str, tmp_path: Path) -> None:
    source = (llama_cpp_models() / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert _template(tmp_path, source).reasoning == PUBLISHED[name]


def test_what_is_chosen_reaches_the_template(tmp_path: Path) -> None:
    template = _template(tmp_path, "{{ enable_thinking }}/{{ reasoning_effort }}")
    assert template.render(HI) == "/"
    assert template.render(HI, Reasoning("high", False)) == "False/high"


@pytest.mark.parametrize(
    ("source", "wish", "told"),
    [
        ("x{{ 'a' if reasoning_effort == 'low' }}", Reasoning("medium"), "takes no reasoning effort 'medium'. It takes low."),
        ("x", Reasoning("low"), "takes no reasoning effort 'low'. Leave it to the model."),
        ("x", Reasoning(is_on=False), "does not let its thinking be switched"),
    ],
)
def test_what_is_not_taken_is_said_with_what_is(source: str, wish: Reasoning, told: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        _template(tmp_path, source).render(HI, wish)
    assert told in f"{caught.value.text} {caught.value.hint}"


def test_a_template_that_takes_no_single_question_offers_nothing(tmp_path: Path) -> None:
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}{{ enable_thinking }}"
    assert _template(tmp_path, source).reasoning == ReasoningChoices()
