"""What an answer consists of: what was thought, what was said, which tools the model wants to call. Pure; knows no Qt."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.protocol import SpanKind, Text


@dataclass(frozen=True, slots=True)
class Said:
    """`calls` each have the tool's name in their first line, empty where nobody could tell, and its arguments below."""

    content: str = ""
    thought: str = ""
    calls: tuple[str, ...] = ()
    span: int = -1  # the one that came last, as far as that is known

    def plus(self, texts: Iterable[Text]) -> "Said":
        """With what came since. Spans of one kind are paragraphs of one text."""
        parts = {SpanKind.ANSWER: [self.content], SpanKind.THOUGHT: [self.thought]}
        calls, span = list(self.calls), self.span
        for text in texts:
            if not text.text:
                continue
            if text.kind is SpanKind.CALL:
                calls.append(text.text)
            else:
                part = parts[text.kind]
                part.append("\n\n" + text.text if span not in (-1, text.span) and any(part) else text.text)
            span = text.span
        return Said("".join(parts[SpanKind.ANSWER]), "".join(parts[SpanKind.THOUGHT]), tuple(calls), span)

    @property
    def is_thinking(self) -> bool:
        """As far as it has come."""
        return bool(self.thought) and not self.content and not self.calls
