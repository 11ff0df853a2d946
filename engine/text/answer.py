"""Token ids of an answer to what a person reads of it: text, split into spans, ended at a stop string."""

from collections.abc import Sequence

from engine.protocol import SpanKind
from engine.text.marks import Form
from engine.text.spans import Piece, SpanSplitter
from engine.text.stream import StopStrings
from engine.text.tokenizer import StreamDecoder, Tokenizer

_TAIL = 48  # tokens of a prompt in which it begins the answer


class AnswerReader:
    """For one answer. Stop strings end what is said; in thoughts and calls they are text."""

    def __init__(self, tokenizer: Tokenizer, form: Form, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._form, self._decoder, self._stops = form, StreamDecoder(tokenizer), StopStrings(stops)
        self._splitter = SpanSplitter(form, form.opened_by(tokenizer.decode_all(list(prompt[-_TAIL:]))))
        self._said = Piece(SpanKind.ANSWER, "", 0)

    @property
    def is_stopped(self) -> bool:
        return self._stops.is_hit

    def add(self, token_id: int) -> tuple[Piece, ...]:
        """What became certain with this token, possibly nothing."""
        mark = self._form.ids.get(token_id)
        if mark is None:
            return self._passed(self._splitter.text(self._decoder.add(token_id)))
        return self._passed([*self._splitter.text(self._decoder.finish()), *self._splitter.mark(mark)])

    def finish(self) -> tuple[Piece, ...]:
        """Whatever was held back, replacement characters included."""
        pieces = self._passed([*self._splitter.text(self._decoder.finish()), *self._splitter.finish()])
        return (*pieces, *self._released())

    def _passed(self, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
        passed: list[Piece] = []
        for piece in pieces:
            if self.is_stopped:
                break
            if piece.kind is SpanKind.ANSWER:
                self._said = piece
                piece = Piece(piece.kind, self._stops.add(piece.text), piece.span)
            else:
                passed += self._released()
            passed += [piece] if piece.text else []
        return tuple(passed)

    def _released(self) -> tuple[Piece, ...]:
        """What was held as the beginning of a stop string: it was none."""
        text = self._stops.finish()
        return (Piece(SpanKind.ANSWER, text, self._said.span),) if text else ()
