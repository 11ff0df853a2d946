"""The hot path: prompt in, tokens out, one at a time. A generator, so that whoever listens decides when to stop."""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from engine.meter import Traffic
from engine.protocol import SpanKind, StopReason
from engine.sample import Sampler
from engine.session import Cancelled, Session
from engine.text.answer import AnswerReader
from engine.text.spans import Piece


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token, the pieces of the answer that became certain with it, and what the pass that produced it moved.

    The first token's traffic is the prefill's. `stop` is set on the last token only.
    """

    id: int
    pieces: tuple[Piece, ...]
    traffic: Traffic
    stop: StopReason | None = None

    @property
    def text(self) -> str:
        """What is said, without thoughts and calls."""
        return "".join(piece.text for piece in self.pieces if piece.kind is SpanKind.ANSWER)


@dataclass(frozen=True, slots=True)
class Limits:
    max_tokens: int
    end_ids: Set[int]


def generate(
    session: Session,
    prompt: Sequence[int],
    sampler: Sampler,
    reader: AnswerReader,
    limits: Limits,
    should_stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int, Traffic], None] = lambda *_: None,
) -> Iterator[Token]:
    """Yield tokens until the model, a limit or the caller ends it. Ends without a last token when cancelled."""
    try:
        logits, traffic = session.sync(prompt, should_stop, progress)
        while not should_stop():
            begun = time.perf_counter()
            token_id = sampler(logits, session.tokens)
            traffic = replace(traffic, seconds=traffic.seconds + time.perf_counter() - begun)
            count = len(session.tokens) - len(prompt) + 1
            pieces = () if token_id in limits.end_ids else reader.add(token_id)
            reason = _stop_reason(session, limits, reader, token_id, count)
            if reason is not None and not reader.is_stopped:
                pieces += reader.finish()
            yield Token(token_id, pieces, traffic, reason)
            if reason is not None:
                return
            logits, traffic = session.step(token_id, should_stop)
    except Cancelled:
        return


def _stop_reason(session: Session, limits: Limits, reader: AnswerReader, token_id: int, count: int) -> StopReason | None:
    if token_id in limits.end_ids:
        return StopReason.END
    if reader.is_stopped:
        return StopReason.STOP_STRING
    if count >= limits.max_tokens:
        return StopReason.MAX_TOKENS
    if len(session.tokens) >= session.capacity:
        return StopReason.CONTEXT_FULL
    return None
