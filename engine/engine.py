"""A loaded model that answers: what front ends see. Reads, measures, plans and loads; keeps what its answers teach."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from engine.accelerators import OpenDevices, open_devices, with_devices
from engine.checkpoint.index import read_json, suggested_expert_ram
from engine.checkpoint.naming import model_name
from engine.config import NO_REASONING, Reasoning, Sampling, Wishes, check_sampling
from engine.errors import EngineError
from engine.experts.heat import load_heat, load_misses, save_heat
from engine.experts.trace import Geometry, Recorder
from engine.experts.vram import Device
from engine.generate import Limits, Token, generate
from engine.hardware.drive import drive_of
from engine.hardware.probe import probe
from engine.kernels.kernels import open_kernels
from engine.knowledge import Answer, Notebook, kind_of, main_card, model_key
from engine.measure import knowledge_of
from engine.meter import Phase, Traffic
from engine.models.stated import end_ids
from engine.parts import LoadProgress, open_parts
from engine.plan.forecast import forecast
from engine.plan.plan import allows_cards, make_plan
from engine.plan.predict import Hits, resident_share, vram_share
from engine.plan.predict import decoded as predict_token
from engine.protocol import ChatMessage, Plan, ReasoningChoices
from engine.rates import Rates
from engine.sample import make_sampler
from engine.session import Parts, Session
from engine.source import Source, inspect
from engine.text.answer import AnswerReader
from engine.text.marks import find_form
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.tiers.copy import DeviceLost
from engine.tiers.disk import DiskReader

_LONGEST_TOKEN = 64  # characters; a text beyond that many for each token of context is not worth tokenising


def plan_for(source: Source, wishes: Wishes) -> Plan:
    """The plan on this machine now, without a prediction. Raises `EngineError` with the nearest plan that works."""
    return make_plan(probe(), source.footprint, wishes, suggested_expert_ram(source.checkpoint.folder))


class Engine:
    """A loaded model. One thread at a time may use it; `close` gives everything back."""

    def __init__(
        self,
        folder: Path,
        wishes: Wishes,
        progress: LoadProgress = lambda *_: None,
        first_messages: Sequence[ChatMessage] = (),
        data: Path | None = None,
        reasoning: Reasoning = NO_REASONING,
        open_devices: OpenDevices = open_devices,
    ) -> None:
        """Load a model as planned; a conversation known already is checked before anything large is allocated.

        `data` is Stoker's own folder, which keeps the rates measured here, which experts were used last, and how the answers
        compared with what was foretold. Raises `EngineError`; nothing stays allocated then.
        """
        source = inspect(folder)
        self._tokenizer = Tokenizer(folder)
        self._template = ChatTemplate(folder)
        self._form = find_form(self._template.source, self._tokenizer.token_id, self._tokenizer.is_special)
        self._end_ids = _end_ids(folder, source.checkpoint.config, self._tokenizer, self._template)
        _check_vocabulary(source, self._tokenizer)
        machine = probe()
        devices, devices_notice = list[Device](), ""
        if allows_cards(wishes.vram_limit):  # else nothing of a card is taken, not even what its driver needs
            devices, devices_notice = open_devices(machine)
            machine = with_devices(machine, devices)
        self._card = main_card(machine)
        self._source, self._notebook = source, None if data is None else Notebook(data, machine)
        plan = make_plan(machine, source.footprint, wishes, suggested_expert_ram(folder))
        self._context, self._rows = plan.context, source.footprint.vocab_size
        if first_messages:
            self.encode(first_messages, reasoning)
        kernels, kernels_notice = open_kernels()
        self._notices = [kernels_notice, drive_of(folder.resolve()).notice, devices_notice]
        self._geometry = _geometry(source)
        self._heat_file = None if self._notebook is None else self._notebook.heat_file(model_key(source.checkpoint))
        heat = load_heat(self._heat_file, source.experts.layers, source.experts.num_experts) if self._heat_file else None
        self._known = knowledge_of(
            source, self._notebook, kernels, lambda done, total: progress("Measuring this computer", done, total),
            devices[0] if plan.vram_slots else None,
        )  # fmt: skip
        self.plan = forecast(machine, source.footprint, wishes, self._known, suggested_expert_ram(folder))
        self._reader = DiskReader()

        def without_devices(reason: str) -> Parts:
            """In RAM alone, as if there were no card."""
            same = replace(wishes, context=self._context)
            self.plan = forecast(with_devices(probe(), []), source.footprint, same, self._known, suggested_expert_ram(folder))
            parts = open_parts(source, self.plan, self._reader, kernels)
            self._notices.append(f"The graphics card is not used any more: {reason}.")
            return parts

        used = devices[: len(self.plan.card_slots)]
        misses = load_misses(self._heat_file) if used and self._heat_file else None
        try:
            parts, lost = None, ""
            try:
                parts = open_parts(source, self.plan, self._reader, kernels, progress, heat, devices=used, kept_path=misses)
            except DeviceLost as error:
                lost = str(error)  # and with the exception goes what it held: there is no room for the experts' slots twice
            self.session = Session(parts or without_devices(lost), self._reader, without_devices if parts else None)
        except BaseException:
            self._reader.close()
            raise

    @property
    def notice(self) -> str:
        """What makes this engine slower than it could be, in a sentence or two; empty when nothing does."""
        return " ".join(filter(None, (*self._notices, self._reader.notice, self.session.notice)))

    @property
    def reasoning(self) -> ReasoningChoices:
        """What a person may choose of its thinking."""
        return self._template.reasoning

    def encode(self, messages: Sequence[ChatMessage], reasoning: Reasoning = NO_REASONING) -> list[int]:
        """Prompt tokens of a conversation. Raises `EngineError` where it does not fit the context."""
        text = self._template.render(messages, reasoning)
        prompt = self._tokenizer.encode(text) if len(text) <= _LONGEST_TOKEN * self._context else []
        if len(prompt) >= self._context or len(text) > _LONGEST_TOKEN * self._context:
            length = f"{len(prompt)} tokens" if prompt else f"{len(text)} characters"
            raise EngineError(
                "prompt.too_long",
                f"The conversation is {length} long, and the context holds {self._context} tokens.",
                "Start a new chat, shorten the message, or load the model with a longer context.",
            )
        if not prompt:
            raise EngineError("prompt.empty", "There is nothing to answer: the prompt has no tokens.", "Write a message.")
        if max(prompt) >= self._rows:
            raise EngineError(
                "model.vocabulary",
                f"{self._tokenizer.file_name} gives token {max(prompt)}, and the weights have rows for {self._rows}.",
                "They are of different models: get both again.",
            )
        return prompt

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        should_stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, Traffic], None] = lambda *_: None,
    ) -> Iterator[Token]:
        """Answer a prompt from `encode`. Raises `EngineError`, also in the middle; the session stays usable."""
        check_sampling(sampling)
        limits = Limits(sampling.max_tokens, self._end_ids)
        reader = AnswerReader(self._tokenizer, self._form, prompt, sampling.stop)
        return self._remembered(generate(self.session, prompt, make_sampler(sampling), reader, limits, should_stop, progress))

    def _remembered(self, tokens: Iterator[Token]) -> Iterator[Token]:
        """The same tokens; heat and what the prediction was worth are kept after each answer, since this process may end at
        any time."""
        decoded: list[Traffic] = []
        try:
            for token in tokens:
                if token.traffic.phase is Phase.DECODE:
                    decoded.append(token.traffic)
                yield token
        finally:
            if self._heat_file is not None and (heat := self.session.heat()):
                save_heat(self._heat_file, heat, self.session.misses())
            rates = None if self.plan.predicted is None else self._known.rates
            if self._notebook is not None and decoded and rates is not None:
                self._notebook.note_answer(model_key(self._source.checkpoint), self._judged(decoded, rates))

    def _judged(self, records: list[Traffic], rates: Rates) -> Answer:
        """An answer's tokens beside what was foretold for the hit rate that they had."""
        lookups = max(1, sum(record.hits + record.misses for record in records))
        hit_rate = sum(record.hits for record in records) / lookups
        in_vram = sum(record.vram_hits for record in records) / lookups
        card = self._known.card if self.plan.vram_slots else None
        context = max(0, len(self.session.tokens) - len(records) // 2)
        hits = Hits(in_vram, hit_rate)
        told = predict_token(self.plan, self._source.footprint, rates, hits, context, card).seconds
        seconds = sum(record.seconds for record in records) / len(records)
        share, kind = resident_share(self.plan), str(kind_of(self._source.footprint))
        name = self._card if self.plan.vram_slots else ""
        held = vram_share(self.plan)
        return Answer(share, hit_rate, seconds / told, len(records), kind, time.time(), 1 / seconds, name, held)

    def record(self, file: TextIO) -> None:
        """From now on the routing of every pass goes to `file` as a trace."""
        self.session.recorder = Recorder(file, self._geometry)

    def close(self) -> None:
        self._reader.close()


def _geometry(source: Source) -> Geometry:
    expert_bytes = {layer: max(item.nbytes for item in items) for layer, items in source.experts.ranges.items()}
    return Geometry(source.checkpoint.name, source.experts.num_experts, source.footprint.top_k, expert_bytes)


def _check_vocabulary(source: Source, tokenizer: Tokenizer) -> None:
    rows = source.footprint.vocab_size
    if tokenizer.vocab_size > rows:
        raise EngineError(
            "model.vocabulary",
            f"{tokenizer.file_name} of {source.checkpoint.name} has ids for {tokenizer.vocab_size} tokens, "
            f"and the weights have rows for {rows}.",
            "They are of different models: get both again.",
        )


def _end_ids(folder: Path, config: dict[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> frozenset[int]:
    """All tokens that end a turn: from the generation config, the config and the tokenizer's own end token."""
    file = folder / "generation_config.json"
    ids: set[int] = set()
    for name, values in ((file.name, read_json(file) if file.is_file() else {}), ("config.json", config)):
        ids |= end_ids(values, name, model_name(folder))
    end = tokenizer.token_id(template.eos_token) if template.eos_token else None
    return frozenset(ids if end is None else ids | {end})
