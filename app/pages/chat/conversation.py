"""Stored messages → what is sent to the engine: user and assistant in turn, whatever became of the answers. Pure."""

from collections.abc import Iterable

from app.core.chats import MessageState, StoredMessage
from engine.protocol import ChatMessage

_SENT_STATES = (MessageState.COMPLETE, MessageState.INTERRUPTED, MessageState.STOPPED)


def conversation(messages: Iterable[StoredMessage]) -> tuple[ChatMessage, ...]:
    """Roles alternate, beginning with the user: most models' templates refuse anything else.

    Answers that failed or never got a word are left out; questions that were left without one are asked together.
    """
    turns: list[ChatMessage] = []
    for message in messages:
        # Nothing runs tools yet: a call without its result would be refused by some templates, so it goes back as text.
        said = "\n\n".join(filter(None, (message.content, *message.calls)))
        is_said = message.state in _SENT_STATES and bool(said.strip())
        if not is_said or (not turns and message.role != "user"):
            continue
        if turns and turns[-1].role == message.role:
            turns[-1] = ChatMessage(message.role, f"{turns[-1].content}\n\n{said}")
        else:
            turns.append(ChatMessage(message.role, said, message.thought))
    return tuple(turns)
