"""`stoker chat`, and a trace recorded by one: loads a model and answers in the terminal. A thin front end like `engine.cli`."""

import argparse
import dataclasses
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from engine.config import Reasoning, Sampling, check_sampling
from engine.errors import EngineError
from engine.meter import Link, Phase, Traffic
from engine.plan_cli import LINK_NAMES
from engine.protocol import ChatMessage, SpanKind, StopReason
from engine.store.library import data_folder, find_model, models_folder
from engine.store.loads import note_loaded
from engine.store_cli import MakeBar, Run, print_json
from engine.units import format_bytes
from engine.wishes_cli import add_wishes, wishes_of

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.text.spans import Piece


def add_chat(verbs: Any, add_verb: Callable[[Any, str, str, Run], argparse.ArgumentParser], make_bar: MakeBar) -> None:
    """The command `chat` among the command line's others."""
    chat = add_verb(verbs, "chat", "answer a prompt, or chat in the terminal", _chat)
    chat.add_argument("prompt", nargs="?", help="one question; without it an interactive chat starts")
    _add_placement(chat)
    _add_sampling(chat)
    chat.add_argument(
        "--reasoning-effort", default="", metavar="LEVEL", help="how much the model thinks, where it takes that: low"
    )
    chat.add_argument("--thinking", choices=("on", "off"), help="whether the model thinks first, where it takes that")
    chat.set_defaults(make_bar=make_bar)


def _add_placement(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="name of a model, or its folder (demo)")
    add_wishes(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    default = Sampling()
    parser.add_argument("--greedy", action="store_true", help="always the likeliest token; the same as --temperature 0")
    parser.add_argument(
        "--max-tokens", type=int, default=default.max_tokens, metavar="N", help=f"length of an answer ({default.max_tokens})"
    )
    parser.add_argument(
        "--temperature", type=float, default=default.temperature, metavar="T", help=f"randomness ({default.temperature})"
    )
    parser.add_argument("--top-k", type=int, default=default.top_k, metavar="K", help="only the K likeliest tokens (0: all)")
    parser.add_argument(
        "--top-p", type=float, default=default.top_p, metavar="P", help=f"only the likeliest P of probability ({default.top_p})"
    )
    parser.add_argument(
        "--min-p",
        type=float,
        default=default.min_p,
        metavar="P",
        help="only tokens P times as likely as the likeliest (0: all)",
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        default=default.repetition_penalty,
        metavar="R",
        help="above 1 discourages repeats (1)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same answer every time")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end the answer before this text; may be repeated"
    )
    parser.add_argument("--system", metavar="TEXT", help="instruction that precedes the conversation")


def _chat(options: argparse.Namespace) -> int:
    sampling, wishes = _sampling(options), wishes_of(options)
    reasoning = Reasoning(options.reasoning_effort, None if options.thinking is None else options.thinking == "on")
    folder, prompt = find_model("demo" if options.model is None else options.model, models_folder()), _prompt(options)
    from engine.engine import Engine

    bar = options.make_bar("Loading", options.json)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # loading changes nothing: it may simply end
    history = [ChatMessage("system", options.system)] if options.system else []
    question = [] if prompt is None else [*history, ChatMessage("user", prompt)]
    engine = Engine(folder, wishes, bar.show_stage, question, data_folder(), reasoning)
    bar.end()
    note_loaded(data_folder(), folder)
    if engine.notice:
        print(engine.notice, file=sys.stderr)
    try:
        if question:
            return _answer_once(engine, question, sampling, reasoning, options.json)
        return _interactive(engine, history, sampling, reasoning)
    finally:
        engine.close()


def record(options: argparse.Namespace) -> int:
    """`stoker trace record`. Raises `EngineError`."""
    sampling = Sampling(max_tokens=options.max_tokens, temperature=0.0)
    check_sampling(sampling)
    folder, wishes = find_model("demo" if options.model is None else options.model, models_folder()), wishes_of(options)
    if options.file.exists():
        raise EngineError("trace.exists", f"{options.file} is there already.", "Give another path, or remove it first.")
    from engine.engine import Engine

    bar = options.make_bar("Loading", options.json)
    engine = Engine(folder, wishes, bar.show_stage)
    bar.end()
    tokens = 0
    try:
        prompts = [engine.encode([ChatMessage("user", prompt)]) for prompt in options.prompt]
        with options.file.open("x", encoding="utf-8") as file:
            engine.record(file)
            for prompt in prompts:
                tokens += sum(1 for _ in engine.generate(prompt, sampling))
    except OSError as error:
        text = f"{options.file} cannot be written: {error.strerror or error}."
        raise EngineError("trace.unwritable", text, "Give another path.") from error
    finally:
        engine.close()
    if options.json:
        print_json({"file": str(options.file), "tokens": tokens})
    else:
        print(f"{tokens} tokens are in {options.file}. Try: stoker trace replay {options.file}")
    return 0


def _prompt(options: argparse.Namespace) -> str | None:
    """The question from the command line or from a pipe; None where a person sits at the terminal."""
    prompt: str | None = options.prompt
    if prompt is None and sys.stdin is not None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    if prompt is None and not options.json:
        return None
    if not (prompt or "").strip():
        raise EngineError("cli.prompt", "The question is empty.", 'Write: stoker chat "your question"')
    return prompt


def _answer_once(engine: "Engine", messages: list[ChatMessage], sampling: Sampling, reasoning: Reasoning, as_json: bool) -> int:
    answer = _Answer(engine, messages, sampling, reasoning)
    if as_json:
        for _ in answer:
            pass
        print_json(
            {
                "text": answer.said(SpanKind.ANSWER),
                "thought": answer.said(SpanKind.THOUGHT),
                "calls": answer.calls,
                "token_ids": answer.ids,
                "stop_reason": answer.stop_reason,
                "plan": dataclasses.asdict(engine.plan),
                "traffic": [dataclasses.asdict(record) for record in answer.traffic],
            }
        )
    else:
        _show(answer)
        print(f"\n\n{answer.summary()}", file=sys.stderr)
    return 130 if answer.stop_reason is StopReason.CANCELLED else 0


def _show(pieces: "Iterable[Piece]") -> None:
    """Thoughts are faint on a terminal, and stay out of a pipe or file."""
    span = None
    for piece in pieces:
        if piece.kind is SpanKind.THOUGHT and not sys.stdout.isatty():
            continue
        if span not in (None, piece.span):
            print("\n")
        span = piece.span
        forms = {SpanKind.THOUGHT: "\x1b[2m{}\x1b[22m", SpanKind.CALL: "Call of {}"}
        print(forms.get(piece.kind, "{}").format(piece.text), end="", flush=True)


def _interactive(engine: "Engine", history: list[ChatMessage], sampling: Sampling, reasoning: Reasoning) -> int:
    print(f"{engine.plan.model_name}. {engine.plan.sentence}\nEnd with Ctrl+D; Ctrl+C stops an answer.\n")
    while True:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            prompt = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not prompt:
            continue
        try:
            answer = _Answer(engine, [*history, ChatMessage("user", prompt)], sampling, reasoning)
            _show(answer)
        except EngineError as error:
            print(f"stoker: {error}", file=sys.stderr)
            continue
        print(f"\n\n{answer.summary()}\n", file=sys.stderr)
        # Nothing runs tools yet: a call without its result would be refused by some templates, so it goes back as text.
        said = "\n\n".join(filter(None, (answer.said(SpanKind.ANSWER), *answer.calls)))
        history += [ChatMessage("user", prompt), ChatMessage("assistant", said, answer.said(SpanKind.THOUGHT))]


class _Answer:
    """One answer as it is written: iterate for its pieces, then read the figures. Ctrl+C ends it, keeping what there is."""

    def __init__(self, engine: "Engine", messages: list[ChatMessage], sampling: Sampling, reasoning: Reasoning) -> None:
        self._engine, self._sampling = engine, sampling
        self._prompt = engine.encode(messages, reasoning)
        self._pieces: list[Piece] = []
        self.ids: list[int] = []
        self.traffic: list[Traffic] = []
        self.stop_reason = StopReason.CANCELLED
        self._is_stopped = False

    def said(self, kind: SpanKind) -> str:
        return "".join(piece.text for piece in self._pieces if piece.kind is kind)

    @property
    def calls(self) -> list[str]:
        """Of tools, each with its name in the first line."""
        return [piece.text for piece in self._pieces if piece.kind is SpanKind.CALL]

    def __iter__(self) -> "Iterator[Piece]":
        previous = signal.signal(signal.SIGINT, self._stop)
        try:
            for token in self._engine.generate(self._prompt, self._sampling, lambda: self._is_stopped):
                self.ids.append(token.id)
                self.traffic.append(token.traffic)
                self._pieces += token.pieces
                self.stop_reason = token.stop or self.stop_reason
                yield from token.pieces
        finally:
            signal.signal(signal.SIGINT, previous)

    def _stop(self, *_: object) -> None:
        self._is_stopped = True

    def summary(self) -> str:
        """Tokens, speed and bytes in one line, as the window shows them."""
        steps = [record for record in self.traffic if record.phase is Phase.DECODE]
        if not steps:
            return f"{len(self.ids)} tokens · {self.stop_reason}"
        seconds = sum(record.seconds for record in steps)
        moved = {link: sum(record.links[link].bytes for record in steps if link in record.links) / len(steps) for link in Link}
        hits = sum(record.hits for record in steps) / max(1, sum(record.hits + record.misses for record in steps))
        origins = {link: use.origin for record in steps for link, use in record.links.items()}
        per_link = " + ".join(
            f"{format_bytes(count)} {LINK_NAMES[link]} ({origins[link]})" for link, count in moved.items() if count
        )
        first, stop = self.traffic[0].seconds, self.stop_reason.replace("_", " ")
        return (
            f"{len(steps) / seconds:.1f} tokens/s · {first:.2f} s to first token · {len(self.ids)} tokens · {stop}\n"
            f"{per_link} per token · {hits:.0%} of experts found in memory"
        )


def _sampling(options: argparse.Namespace) -> Sampling:
    sampling = Sampling(
        max_tokens=options.max_tokens,
        temperature=0.0 if options.greedy else options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        stop=tuple(options.stop),
    )
    check_sampling(sampling)
    return sampling
