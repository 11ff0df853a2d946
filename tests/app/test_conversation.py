"""What is sent to the engine: whatever became of earlier answers, roles alternate and no word of the person is lost."""

import itertools

import pytest

from app.core.chats import MessageState, StoredMessage
from app.pages.chat.conversation import conversation
from engine.protocol import ChatMessage

COMPLETE, FAILED, STOPPED = MessageState.COMPLETE, MessageState.FAILED, MessageState.STOPPED
INTERRUPTED, STREAMING = MessageState.INTERRUPTED, MessageState.STREAMING


def sent(*messages: tuple[str, str, MessageState]) -> list[tuple[str, str]]:
    stored = [StoredMessage(number, 1, *message, None, 0.0) for number, message in enumerate(messages)]
    return [(message.role, message.content) for message in conversation(stored)]


def test_answered_questions_stay_as_they_are() -> None:
    said = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "half"), ("user", "d")]
    states = [COMPLETE, COMPLETE, COMPLETE, INTERRUPTED, COMPLETE]
    assert sent(*((role, text, state) for (role, text), state in zip(said, states, strict=True))) == said


@pytest.mark.parametrize(
    "answer", [("", STOPPED), ("", INTERRUPTED), ("", COMPLETE), (" \n", STOPPED), ("half", FAILED), ("", STREAMING)]
)
def test_a_question_without_an_answer_is_asked_with_the_next(answer: tuple[str, MessageState]) -> None:
    assert sent(("user", "one", COMPLETE), ("assistant", *answer), ("user", "two", COMPLETE)) == [("user", "one\n\ntwo")]


def test_thoughts_go_along_and_calls_are_text() -> None:
    rows = [
        StoredMessage(1, 1, "user", "one", COMPLETE, None, 0.0),
        StoredMessage(2, 1, "assistant", "So.", COMPLETE, None, 0.0, "Hm.", ("look\n{}",)),
        StoredMessage(3, 1, "user", "two", COMPLETE, None, 0.0),
        StoredMessage(4, 1, "assistant", "", STOPPED, None, 0.0, "Only a thought."),
        StoredMessage(5, 1, "user", "three", COMPLETE, None, 0.0),
    ]
    expected = (
        ChatMessage("user", "one"),
        ChatMessage("assistant", "So.\n\nlook\n{}", "Hm."),
        ChatMessage("user", "two\n\nthree"),
    )
    assert conversation(rows) == expected


def test_it_begins_with_the_user() -> None:
    assert sent(("assistant", "Hello.", COMPLETE), ("user", "one", COMPLETE)) == [("user", "one")]


def test_roles_alternate_whatever_happened() -> None:
    """Every history of four turns whose answers ended in every way."""
    answers = [("assistant", text, state) for text, state in (("x", COMPLETE), ("", STOPPED), ("x", FAILED), ("x", STOPPED))]
    rows = [("user", "q", COMPLETE), *answers]
    for history in itertools.product(rows, repeat=4):
        roles = [role for role, _ in sent(*history, ("user", "last", COMPLETE))]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert roles[-1] == "user"
