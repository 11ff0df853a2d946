"""The engine behind stdin and stdout, for the window: one JSON message per line each way (see `engine.protocol`).

The main thread only reads; one worker thread owns the engine and answers requests in order. End of input ends the process.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from engine import __version__
from engine.errors import EngineError
from engine.models.registry import SUPPORTED
from engine.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Failed,
    Finished,
    Generate,
    Hello,
    ListModels,
    Load,
    Loaded,
    Message,
    Meter,
    Models,
    Phase,
    Progress,
    ProtocolError,
    SpanKind,
    Started,
    StopReason,
    Text,
    Traffic,
    decode,
    encode,
    request_id_of,
)  # fmt: skip
from engine.store.library import data_folder, find_model, list_models, models_folder
from engine.store.loads import note_loaded

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.generate import Token
    from engine.text.spans import Piece

_log = logging.getLogger(__name__)
_TEXT_SECONDS = 1 / 30  # faster than that nobody reads, and each message costs the window a wake-up
_METER_SECONDS = 1 / 5


class Wire:
    """Writes messages, one line each, from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        with self._lock:
            self._stream.write(encode(message).encode() + b"\n")
            self._stream.flush()


class Host:
    """Answers requests from a queue with one engine, loaded at most once: another model is another process."""

    def __init__(self, wire: Wire, folder: Path) -> None:
        self._wire, self._folder = wire, folder
        self._engine: Engine | None = None
        self._cancelled: set[int] = set()

    def cancel(self, request_id: int) -> None:
        """From any thread; also ahead of the request itself."""
        self._cancelled.add(request_id)

    def answer(self, request: Message) -> None:
        """Exactly one closing event per request, whatever happens."""
        request_id: int = getattr(request, "request_id", 0)
        try:
            match request:
                case ListModels():
                    self._wire.send(Models(request_id, list_models(self._folder, SUPPORTED), str(self._folder)))
                case Load():
                    self._load(request)
                case Generate():
                    self._generate(request)
                case _:
                    raise EngineError("protocol.unexpected", f"{type(request).__name__} is not a request.")
        except EngineError as error:
            self._wire.send(Failed(request_id, error.code, error.text, error.hint))
        except MemoryError:
            self._wire.send(
                Failed(request_id, "memory.refused", "The system refused memory for this step.", "Close other programs.")
            )
        except BaseException as error:
            _log.exception("request %s failed", request_id)
            text = f"The engine met an internal error ({type(error).__name__}: {error})."
            self._wire.send(Failed(request_id, "engine.bug", text, "Its log has the details; please report it."))
        finally:
            self._cancelled.discard(request_id)

    def _load(self, request: Load) -> None:
        if self._engine is not None:
            raise EngineError(
                "engine.loaded", f"{self._engine.plan.model_name} is loaded already.", "Restart the engine for another model."
            )
        from engine.engine import Engine  # here, since it brings torch: neither hello nor model list waits for it

        folder = find_model(request.model, self._folder)

        def progress(stage: str, done: int, total: int) -> None:
            self._wire.send(Progress(request.request_id, stage, done, total))

        self._engine = Engine(folder, request.wishes, progress, data=data_folder())
        note_loaded(self._folder.parent, folder)
        self._wire.send(Loaded(request.request_id, self._engine.plan, self._engine.notice, self._engine.reasoning))

    def _generate(self, request: Generate) -> None:
        if self._engine is None:
            raise EngineError("engine.no_model", "No model is loaded.", "Choose a model first.")
        begun = time.perf_counter()
        prompt = self._engine.encode(request.messages, request.reasoning)
        answer = _Answer(self._wire, request.request_id, len(prompt), begun)
        self._wire.send(Started(request.request_id, len(prompt), self._engine.session.reusable(prompt)))
        tokens = self._engine.generate(
            prompt, request.sampling, lambda: request.request_id in self._cancelled, answer.prompt_read
        )
        try:
            for token in tokens:
                answer.add(token)
        finally:
            answer.flush()
        answer.finish(len(self._engine.session.tokens))


class _Answer:
    """Turns tokens into events at a bounded rate."""

    def __init__(self, wire: Wire, request_id: int, prompt_tokens: int, begun: float) -> None:
        self._wire, self._id, self._prompt_tokens = wire, request_id, prompt_tokens
        self._begun = begun
        self._first_at = self._last_at = 0.0
        self._text_sent = self._meter_sent = 0.0
        self._pieces: list[Piece] = []
        self._unsent_tokens = self._tokens = 0
        self._records: list[Traffic] = []
        self._stop: StopReason | None = None
        self._place = (SpanKind.ANSWER, 0)  # what was sent last

    def prompt_read(self, count: int, traffic: Traffic) -> None:
        self._wire.send(Progress(self._id, "Reading the prompt", count, self._prompt_tokens))
        self._wire.send(Meter(self._id, (traffic,)))

    def add(self, token: "Token") -> None:
        now = time.perf_counter()
        self._first_at = self._first_at or now
        self._last_at = now
        self._tokens += 1
        self._unsent_tokens += 1
        self._pieces += token.pieces
        if token.traffic.phase is Phase.DECODE:  # the prefill's went out chunk by chunk
            self._records.append(token.traffic)
        self._stop = token.stop
        if now - self._text_sent >= _TEXT_SECONDS:
            self._send_text(now)
        if now - self._meter_sent >= _METER_SECONDS:
            self._send_meter(now)

    def flush(self) -> None:
        """Whatever has not been sent yet."""
        now = time.perf_counter()
        self._send_text(now)
        self._send_meter(now)

    def finish(self, context_used: int) -> None:
        decode_seconds = self._last_at - self._first_at
        self._wire.send(
            Finished(
                request_id=self._id,
                stop_reason=self._stop or StopReason.CANCELLED,
                prompt_tokens=self._prompt_tokens,
                new_tokens=self._tokens,
                first_token_seconds=self._first_at - self._begun if self._tokens else 0.0,
                tokens_per_second=(self._tokens - 1) / decode_seconds if decode_seconds > 0 else 0.0,
                context_used=context_used,
            )
        )

    def _send_text(self, now: float) -> None:
        """A message for each span; the tokens count with the first. Those without text yet show that the answer goes on."""
        kind, span = (self._pieces[0].kind, self._pieces[0].span) if self._pieces else self._place
        spans = {(kind, span): ""}
        for piece in self._pieces:
            spans[piece.kind, piece.span] = spans.get((piece.kind, piece.span), "") + piece.text
        for (kind, span), text in spans.items():
            if self._unsent_tokens or text:
                self._wire.send(Text(self._id, text, self._unsent_tokens, self._tokens, kind, span))
            self._unsent_tokens, self._place = 0, (kind, span)
        self._pieces, self._text_sent = [], now

    def _send_meter(self, now: float) -> None:
        if self._records:
            self._wire.send(Meter(self._id, tuple(self._records)))
        self._records, self._meter_sent = [], now


def main() -> int:
    """Serve until stdin ends. Whatever prints to stdout by mistake lands in the log, not in the stream."""
    wire_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in a terminal is for the window, which then closes our stdin
    wire = Wire(wire_out)
    wire.send(Hello(PROTOCOL_VERSION, __version__, os.getpid()))
    requests: queue.SimpleQueue[Message] = queue.SimpleQueue()
    host = Host(wire, models_folder())
    threading.Thread(target=_serve, args=(host, requests), name="engine", daemon=True).start()
    for line in sys.stdin.buffer:
        try:
            message = decode(line)
        except ProtocolError as error:
            _log.warning("%s", error)
            if (request_id := request_id_of(line)) is not None:
                wire.send(
                    Failed(request_id, "protocol.unreadable", "The engine did not understand a request.", "Update Stoker.")
                )
            continue
        if isinstance(message, Cancel):
            host.cancel(message.request_id)
        else:
            requests.put(message)
    os._exit(0)  # the window is gone: nothing may keep this process, not even a read that hangs on a dead drive


def _serve(host: Host, requests: "queue.SimpleQueue[Message]") -> None:
    while True:
        try:
            host.answer(requests.get())
        except BrokenPipeError:
            os._exit(0)
