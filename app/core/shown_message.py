"""What a message says about itself, in words. Pure; knows neither how it is drawn nor who answers."""

import re
from dataclasses import dataclass

from app.core.chats import AnswerStats, MessageState, StoredMessage
from app.core.figures import format_count, format_rate, format_seconds
from engine.protocol import StopReason

_REASONS = {
    StopReason.END: "finished",
    StopReason.STOP_STRING: "stopped at a stop word",
    StopReason.MAX_TOKENS: "cut at the token limit",
    StopReason.CONTEXT_FULL: "cut, the context is full",
    StopReason.CANCELLED: "stopped by you",
}
ENGINE_DIED = "engine.died"  # the stop reason of an answer that ended with its engine
_STATES = {
    MessageState.STREAMING: "writing…",
    MessageState.INTERRUPTED: "interrupted",
    MessageState.STOPPED: "stopped by you",
    MessageState.FAILED: "no answer",
}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A stored message and what only this session knows of it."""

    message: StoredMessage
    thought_seconds: float | None = None
    notice: str = ""  # e.g. "reading the prompt" before the first word


def figures(stats: AnswerStats | None) -> tuple[str, ...]:
    """The numbers under an answer; those that are not known are left out."""
    if stats is None or not stats.new_tokens:
        return ()
    parts = []
    if stats.tokens_per_second > 0:
        parts.append(f"{format_rate(stats.tokens_per_second)} tok/s")
    if stats.first_token_seconds > 0:
        parts.append(f"{format_seconds(stats.first_token_seconds)} to first token")
    parts.append(format_count(stats.new_tokens, "token"))
    return tuple(parts)


def state_in_words(shown: ShownMessage) -> str:
    """How the answer stands: being written, finished and why, or broken off."""
    message = shown.message
    if message.state is MessageState.STREAMING and shown.notice and not (message.content or message.thought):
        return shown.notice
    reason = message.stats.stop_reason if message.stats else ""
    if message.state is MessageState.INTERRUPTED and reason == ENGINE_DIED:
        return "interrupted, the engine ended"
    if message.state in _STATES:
        return _STATES[message.state]
    return next((words for known, words in _REASONS.items() if known == reason), reason)


def call_words(call: str) -> tuple[str, str]:
    """(what the model wants, the arguments as Markdown) of a call whose first line is the tool's name."""
    name, _, arguments = call.partition("\n")
    fence = "`" * (3 + max((len(run) for run in re.findall("`+", arguments)), default=0))
    return f"Wants to call {name or 'a tool'}", f"{fence}json\n{arguments}\n{fence}"


def thought_label(is_open: bool, seconds: float | None, text: str) -> str:
    if is_open:
        return "Thinking…"
    if seconds is not None:
        return f"Thought for {format_seconds(seconds)}"
    return f"Thought in {format_count(len(text.split()), 'word')}"
