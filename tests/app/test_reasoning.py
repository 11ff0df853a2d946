"""Thoughts, calls and how much a model thinks: what is offered, what is asked of the engine, what a chat keeps."""

from collections.abc import Callable

import pytest
from PySide6.QtWidgets import QMenu
from pytestqt.qtbot import QtBot

from app.core.reasoning_words import choices, chosen, wish
from app.core.said import Said
from app.pages.chat import ChatPage
from app.pages.chat.reasoning_chip import ReasoningChip
from engine.protocol import NO_REASONING, Reasoning, ReasoningChoices, SpanKind, Text
from tests.app.test_chat_page import make_page, ready, say, stored, wait_for_answer

__all__ = ["make_page"]

MakePage = Callable[..., ChatPage]
EFFORTS = ReasoningChoices(("low", "medium", "high"), "medium")
SWITCH = ReasoningChoices(can_switch=True, is_on=True)
BOTH = ReasoningChoices(("high", "max"), "", can_switch=True, is_on=False)


@pytest.mark.parametrize(
    ("offered", "words", "default"),
    [
        (ReasoningChoices(), [], None),
        (EFFORTS, ["low", "medium", "high"], "medium"),
        (SWITCH, ["off", "on"], "on"),
        (ReasoningChoices(can_switch=True), ["as the model does", "off", "on"], "as the model does"),
        (ReasoningChoices(("no_think", "high")), ["as the model does", "no think", "high"], "as the model does"),
        (BOTH, ["off", "high", "max"], "off"),
    ],
)
def test_what_is_offered(offered: ReasoningChoices, words: list[str], default: str | None) -> None:
    assert [choice.words for choice in choices(offered)] == words
    meant = chosen(offered, "")
    assert (meant.words if meant is not None else None) == default
    assert wish(offered, "") == NO_REASONING, "the template's own default is left to it"


def test_a_choice_that_another_model_does_not_take_is_not_sent_to_it() -> None:
    assert wish(EFFORTS, "high") == Reasoning("high")
    assert wish(SWITCH, "off") == Reasoning(is_on=False)
    assert wish(BOTH, "max") == Reasoning("max", True), "an effort without thinking would be none"
    for offered in (ReasoningChoices(), SWITCH):
        assert wish(offered, "high") == NO_REASONING


def test_a_reopened_answer_goes_on_where_it_is() -> None:
    """The span that was being written is not known then."""
    said = Said("Hel").plus([Text(1, "lo", 1, 1, SpanKind.ANSWER, span=3), Text(1, "More", 1, 1, SpanKind.ANSWER, span=4)])
    assert said.content == "Hello\n\nMore"


def _chip(page: ChatPage) -> ReasoningChip:
    found = page.findChild(ReasoningChip)
    assert found is not None
    return found


def _pick(page: ChatPage, words: str) -> None:
    menu = _chip(page).menu()
    assert isinstance(menu, QMenu)
    next(action for action in menu.actions() if action.text() == words).trigger()


def test_a_model_without_choices_has_no_chip(make_page: MakePage, qtbot: QtBot) -> None:
    assert not _chip(ready(make_page("normal"), qtbot)).isVisible()


def test_thought_answer_and_call_are_stored_apart(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "500", "--thinks"), qtbot)
    say(page)
    answer = wait_for_answer(page, qtbot)
    assert answer.thought.startswith("The column is wrapped")
    assert answer.thought.endswith("look at the plan.")
    assert answer.content.startswith("The planner cannot")
    assert [call.splitlines()[0] for call in answer.calls] == ["explain_query"]
    shown = page._messages.messages[-1]
    assert (shown.thought, shown.content, shown.calls) == (answer.thought, answer.content, answer.calls)


def test_each_chat_keeps_its_choice_and_it_is_asked_of_the_engine(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "500", "--tokens", "3", "--thinks"), qtbot)
    sent: list[Reasoning] = []
    generate = page._services.engine.generate

    def spy(messages: object, sampling: object, reasoning: Reasoning) -> int:
        sent.append(reasoning)
        return generate(messages, sampling, reasoning)  # type: ignore[arg-type]

    page._services.engine.generate = spy  # type: ignore[method-assign,assignment]
    assert _chip(page).text() == "Reasoning: medium ▾"
    _pick(page, "high")
    assert _chip(page).text() == "Reasoning: high ▾"
    say(page, "one")
    wait_for_answer(page, qtbot)
    _pick(page, "low")
    page._regenerate(stored(page)[-1].id)
    wait_for_answer(page, qtbot)
    first = page._services.chats.chats()[0]
    assert first.reasoning == "low"
    page._new_chat()
    _pick(page, "medium")
    say(page, "two")
    wait_for_answer(page, qtbot)
    assert sent == [Reasoning("high"), Reasoning("low"), Reasoning("medium")]
    page._open(first)
    assert _chip(page).text() == "Reasoning: low ▾"
    assert [action.text() for action in _chip(page).menu().actions() if action.isChecked()] == ["low"]
