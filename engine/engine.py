"""Joins checkpoint, plan, tiers, experts and model: the one place that knows them all. Front ends see nothing below it."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import torch

from engine import bench
from engine.accelerators import OpenDevices, open_devices, with_devices
from engine.checkpoint.experts import ExpertMap, Run, map_experts
from engine.checkpoint.index import Checkpoint, open_checkpoint, read_json, suggested_expert_ram
from engine.config import NO_REASONING, Reasoning, Sampling, Wishes, check_sampling
from engine.devices import open_tiers, start_lanes
from engine.errors import EngineError
from engine.experts.bind import ExpertBinder, ExpertFormat, recognise_experts
from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.device_lanes import DeviceLanes
from engine.experts.heat import hottest, load_heat, load_misses, save_heat
from engine.experts.lanes import CpuLane
from engine.experts.policy import Expert, Heat
from engine.experts.run import ExpertRunner
from engine.experts.table import SlotTable
from engine.experts.trace import Geometry, Recorder
from engine.experts.vram import Device
from engine.generate import Limits, Token, generate
from engine.hardware.drive import drive_of
from engine.hardware.probe import probe
from engine.kernels.kernels import Kernels, open_kernels
from engine.knowledge import Answer, Notebook, kind_of, model_key
from engine.kv.cache import KvCache
from engine.meter import Link, Meter, Phase, Traffic
from engine.models.decoder import swiglu_shapes
from engine.models.dense import Dense, find_dense
from engine.models.hf_config import HfConfig
from engine.models.lookahead import NextRouter
from engine.models.published import text_part
from engine.models.registry import Architecture, find
from engine.models.stated import check_stated, end_ids
from engine.plan.footprint import Footprint, guest_slots
from engine.plan.forecast import Knowledge, forecast
from engine.plan.plan import CACHED_ROWS, ENGINE_USES, WITH_VRAM, make_plan, reserve_bytes
from engine.plan.predict import NO_CORRECTION, resident_share
from engine.plan.predict import decoded as predict_token
from engine.protocol import ChatMessage, Plan, ReasoningChoices
from engine.quant.registry import quantization_of
from engine.rates import Rates
from engine.rehearsal import RECALL
from engine.sample import make_sampler
from engine.session import FallBack, Parts, Session
from engine.text.answer import AnswerReader
from engine.text.marks import find_form
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.tiers.arena import RamArena, slot_stride
from engine.tiers.copy import DeviceLost
from engine.tiers.dense import load_dense
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore

_EMBEDDING = "model.embed_tokens.weight"
_WARM_SECONDS = 3.0  # of loading, for what would otherwise be read when first needed
_LONGEST_TOKEN = 64  # characters; a text beyond that many for each token of context is not worth tokenising

LoadProgress = Callable[[str, int, int], None]  # (stage, done bytes, total bytes)


@dataclass(frozen=True)
class Source:
    """A checkpoint whose headers have been read and found to fit together. Nothing large is allocated yet."""

    checkpoint: Checkpoint
    architecture: Architecture
    config: Any  # the architecture's own Config
    dense: Dense
    experts: ExpertMap
    expert_format: ExpertFormat
    footprint: Footprint


def inspect(folder: Path) -> Source:
    """Read and check everything that can be known before the weights. Raises `EngineError` with the name of what is wrong."""
    with _uncollected():
        checkpoint = text_part(open_checkpoint(folder))
        check_stated(checkpoint)
        architecture = find(checkpoint.config, checkpoint.name)
        module = architecture.load()
        config = module.Config.read(checkpoint.config, checkpoint.name)
        dense = find_dense(checkpoint, module.weight_shapes(config))
        experts = map_experts(checkpoint, architecture.experts)
        expert_format = recognise_experts(experts, architecture.experts, quantization_of(checkpoint.config))
    _check_experts(checkpoint, config, experts, expert_format)
    footprint = _footprint(checkpoint, architecture, config, dense, experts, expert_format)
    return Source(checkpoint, architecture, config, dense, experts, expert_format, footprint)


@contextmanager
def _uncollected() -> Iterator[None]:
    """For many objects that all stay: to look for garbage among them takes as long as to make them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def plan_for(source: Source, wishes: Wishes) -> Plan:
    """The plan on this machine now, without a prediction. Raises `EngineError` with the nearest plan that works."""
    return make_plan(probe(), source.footprint, wishes, suggested_expert_ram(source.checkpoint.folder))


def measure(
    source: Source,
    kernels: Kernels,
    seconds: float = bench.SECONDS,
    progress: Callable[[int, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
    recall: float = RECALL,
) -> Rates:
    """This computer's rates for a model's format and sizes, before anything of it is loaded.

    Raises `EngineError` and `bench.Stopped`.
    """
    machine, reader = probe(), DiskReader()
    try:
        limit = machine.ram_available - reserve_bytes(machine)
        return bench.measure(source, reader, kernels, limit, seconds, progress, should_stop, recall)
    finally:
        reader.close()


def knowledge_of(
    source: Source,
    notebook: Notebook | None,
    kernels: Kernels | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Knowledge:
    """What a forecast needs: rates noted earlier, or else measured now. Loads nothing. Raises `EngineError`."""
    folder, footprint = source.checkpoint.folder, source.footprint
    known = Knowledge()
    if notebook is not None:
        known = notebook.knowledge(footprint, folder, model_key(source.checkpoint))
        if not notebook.should_measure(footprint, folder):
            return known
    seconds = bench.SHORT_SECONDS if notebook is None else bench.SECONDS
    try:
        rates = measure(source, kernels or open_kernels()[0], seconds, progress)
    except EngineError as error:
        if error.code != "bench.memory":
            raise
        return replace(known, rates=None, unknown=error.text.rstrip("."))
    if notebook is not None:
        notebook.note_rates(footprint, folder, rates)
    return replace(known, rates=rates, unknown="", correction=NO_CORRECTION)


def open_session(
    source: Source,
    plan: Plan,
    reader: DiskReader,
    kernels: Kernels,
    progress: LoadProgress = lambda *_: None,
    heat: Mapping[Expert, float] | None = None,
    room: Callable[[], int] = lambda: probe().ram_available,
    devices: Sequence[Device] = (),
    kept_path: Any = None,
    fall_back: FallBack | None = None,
) -> Session:
    """Dense weights into memory, expert slots and KV cache as planned. Raises `EngineError`, with devices `DeviceLost`.

    `heat` is that of an earlier run, for a warm start; `room()` what this process may still take, watched from now on. With
    `devices` the model runs on the first of them, and the plan's VRAM slots are spread over all; `kept_path` is what
    `MissPath.kept` gave there, and `fall_back` is for their loss.
    """
    parts = open_parts(source, plan, reader, kernels, progress, heat, room, devices, kept_path)
    return Session(parts, reader, plan.prefill_chunk, fall_back)


def open_parts(
    source: Source,
    plan: Plan,
    reader: DiskReader,
    kernels: Kernels,
    progress: LoadProgress = lambda *_: None,
    heat: Mapping[Expert, float] | None = None,
    room: Callable[[], int] = lambda: probe().ram_available,
    devices: Sequence[Device] = (),
    kept_path: Any = None,
) -> Parts:
    """What a session runs on; see `open_session`."""
    experts, footprint, meter = source.experts, source.footprint, Meter()
    reserve = reserve_bytes(probe()) // 2  # the plan leaves twice that
    arena = RamArena(footprint.slot_bytes, sum(plan.slots_per_layer))
    arena.populate()
    rows = _rows_on_disk(source, plan, reader)
    refs = [*(ref for ref in source.dense.refs if rows is None or ref.name != _EMBEDDING), *experts.small_refs()]
    tensors = load_dense(reader, refs, lambda done, total: progress("Reading the dense weights", done, total))
    policy = Heat(experts.layers, experts.num_experts)
    cache = ExpertCache(experts.layers, plan.slots_per_layer, policy, guest_slots(footprint.top_k))
    binder = ExpertBinder(experts, source.expert_format, tensors)
    binder.check_resident()
    binder.check_layout(arena.tensor(0), kernels.check)
    if rows is not None:
        tensors[_EMBEDDING] = rows.data
    main = devices[0].kernels if devices else kernels
    device = devices[0].device if devices else torch.device("cpu")
    placed = {name: tensor if name == _EMBEDDING and rows else tensor.to(device) for name, tensor in tensors.items()}
    weights = source.dense.bind(placed, main.check, shortened=[] if rows is None else [_EMBEDDING])
    if rows is not None:
        stem = _EMBEDDING.removesuffix(".weight")
        weights.matrices[stem] = replace(weights.matrices[stem], rows=rows.capacity)
    names = source.architecture
    look_ahead = NextRouter(weights, names.router, names.norm, experts.layers, footprint.top_k, main)
    budget = SlotBudget(cache, arena, guest_slots(footprint.top_k), reserve, room)
    table = SlotTable(arena, binder, kernels)
    cpu = CpuLane(table, kernels, source.config.math, meter, experts.expert_bytes)
    lanes: CpuLane | DeviceLanes = cpu
    if devices:
        small = {ref.name: tensors[ref.name] for ref in experts.small_refs()}
        tiers = open_tiers(devices, experts, source.expert_format, small, footprint, plan.vram_slots)
        math, hidden_size = source.config.math, footprint.hidden_size
        lanes = DeviceLanes(tiers, cpu, arena, math, meter, experts.expert_bytes, hidden_size)
    runner = ExpertRunner(experts, cache, arena, table, reader, lanes, meter, look_ahead, budget)
    kv = KvCache(
        footprint.num_layers, footprint.num_kv_heads, footprint.head_dim, plan.context, device, plan.kv_type,
        source.config.kept_windows, plan.prefill_chunk,
    )  # fmt: skip
    model = source.architecture.load().build(source.config, weights, main)
    if heat:
        policy.warm(heat)
        wanted = hottest(heat, cache.member_slots)
        runner.load(wanted, _WARM_SECONDS, lambda done: progress("Reading the experts used last", done, len(wanted)))
    if isinstance(lanes, DeviceLanes):
        start_lanes(lanes, runner, kept_path)
        until = time.monotonic() + _WARM_SECONDS
        lanes.warm(heat or {}, lambda wanted: runner.bring(wanted, until - time.monotonic()))
        return Parts(model, kv, runner, lanes.heat, meter, footprint.dense_read_bytes, rows, Link.VRAM)
    return Parts(model, kv, runner, policy.heat, meter, footprint.dense_read_bytes, rows)


def _rows_on_disk(source: Source, plan: Plan, reader: DiskReader) -> RowStore | None:
    """The embedding table where the plan leaves it on disk."""
    if plan.dense_bytes == source.footprint.dense_bytes:
        return None
    ref = source.checkpoint.tensor(_EMBEDDING)
    return RowStore(reader, Run(ref.file, ref.offset, ref.nbytes), ref.nbytes // ref.shape[0], CACHED_ROWS)


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
        self._source, self._notebook = source, None if data is None else Notebook(data, machine)
        devices, devices_notice = open_devices(machine)
        uses = WITH_VRAM if devices else ENGINE_USES
        machine = with_devices(machine, devices) if devices else machine
        plan = make_plan(machine, source.footprint, wishes, suggested_expert_ram(folder), uses)
        self._context, self._rows = plan.context, source.footprint.vocab_size
        if first_messages:
            self.encode(first_messages, reasoning)
        kernels, kernels_notice = open_kernels()
        self._notices = [kernels_notice, drive_of(folder.resolve()).notice, devices_notice]
        self._geometry = _geometry(source)
        self._heat_file = None if self._notebook is None else self._notebook.heat_file(model_key(source.checkpoint))
        heat = load_heat(self._heat_file, source.experts.layers, source.experts.num_experts) if self._heat_file else None
        self._known = knowledge_of(
            source, self._notebook, kernels, lambda done, total: progress("Measuring this computer", done, total)
        )
        self.plan = forecast(machine, source.footprint, wishes, self._known, suggested_expert_ram(folder), uses)
        self._reader = DiskReader()

        def without_devices(reason: str) -> Parts:
            """In RAM alone, as if there were no card."""
            self._notices.append(f"The graphics card is not used any more: {reason}.")
            same = replace(wishes, context=self._context)
            self.plan = forecast(probe(), source.footprint, same, self._known, suggested_expert_ram(folder))
            return open_parts(source, self.plan, self._reader, kernels)

        try:
            try:
                used = devices if self.plan.vram_slots else []
                misses = load_misses(self._heat_file) if self._heat_file else None
                self.session = open_session(
                    source, self.plan, self._reader, kernels, progress, heat,
                    devices=used, kept_path=misses, fall_back=without_devices,
                )  # fmt: skip
            except DeviceLost as lost:
                self.session = Session(without_devices(str(lost)), self._reader, self.plan.prefill_chunk)
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
            if self._heat_file is not None:
                save_heat(self._heat_file, self.session.heat(), self.session.misses())
            rates = None if self.plan.vram_slots else self._known.rates  # no card's rates are known
            if self._notebook is not None and decoded and rates is not None:
                self._notebook.note_answer(model_key(self._source.checkpoint), self._judged(decoded, rates))

    def _judged(self, records: list[Traffic], rates: Rates) -> Answer:
        """An answer's tokens beside what was foretold for the hit rate that they had."""
        lookups = max(1, sum(record.hits + record.misses for record in records))
        hit_rate = sum(record.hits for record in records) / lookups
        context = max(0, len(self.session.tokens) - len(records) // 2)
        told = predict_token(self.plan, self._source.footprint, rates, hit_rate, context).seconds
        seconds = sum(record.seconds for record in records) / len(records)
        share, kind = resident_share(self.plan), str(kind_of(self._source.footprint))
        return Answer(share, hit_rate, seconds / told, len(records), kind, time.time(), 1 / seconds)

    def record(self, file: TextIO) -> None:
        """From now on the routing of every pass goes to `file` as a trace."""
        self.session.recorder = Recorder(file, self._geometry)

    def close(self) -> None:
        self._reader.close()


def _geometry(source: Source) -> Geometry:
    expert_bytes = {layer: max(item.nbytes for item in items) for layer, items in source.experts.ranges.items()}
    return Geometry(source.checkpoint.name, source.experts.num_experts, source.footprint.top_k, expert_bytes)


def _footprint(
    checkpoint: Checkpoint, architecture: Architecture, config: Any, dense: Dense, experts: ExpertMap, form: ExpertFormat
) -> Footprint:
    dense_bytes = sum(ref.nbytes for ref in dense.refs) + sum(ref.nbytes for ref in experts.small_refs())
    looked_up = 0 if config.tied else checkpoint.tensor(_EMBEDDING).nbytes
    return Footprint(
        name=checkpoint.name,
        architecture=architecture.model_type,
        weight_format=form.label,
        model_bytes=checkpoint.nbytes,
        dense_bytes=dense_bytes,
        dense_read_bytes=dense_bytes - looked_up,
        looked_up_bytes=looked_up,
        head_bytes=_head_bytes(dense),
        num_heads=config.num_heads,
        expert_bytes=experts.expert_bytes,
        slot_bytes=slot_stride(experts),
        num_moe_layers=len(experts.layers),
        num_experts=experts.num_experts,
        top_k=config.top_k,
        num_layers=config.num_layers,
        kv_layers=config.kv_layers,
        windows=tuple(Counter(filter(None, config.kept_windows)).items()),
        state_bytes=KvCache.state_bytes(config.state_values),
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        expert_size=config.expert_size,
        vocab_size=config.vocab_size,
        max_context=HfConfig(checkpoint.config, checkpoint.name).integer("max_position_embeddings", 2048),
    )


def _head_bytes(dense: Dense) -> int:
    layout, parts = dense.layouts["lm_head" if "lm_head" in dense.layouts else "model.embed_tokens"]
    return sum(parts[suffix].nbytes for suffix in layout.parts)


def _check_experts(checkpoint: Checkpoint, config: Any, experts: ExpertMap, form: ExpertFormat) -> None:
    def mismatch(what: str, found: object, wanted: object) -> EngineError:
        return EngineError(
            "checkpoint.experts",
            f"{checkpoint.name} has {what} {found}, where config.json asks for {wanted}.",
            "config.json and weights are of different models: get both again.",
        )

    if experts.layers != config.moe_layers:
        raise mismatch("experts in layers", list(experts.layers), list(config.moe_layers))
    if experts.num_experts != config.num_experts:
        raise mismatch("experts per layer:", experts.num_experts, config.num_experts)
    if not config.top_k <= config.num_experts:
        raise mismatch("experts per layer:", experts.num_experts, f"{config.top_k} for each token")
    wanted = swiglu_shapes(config.hidden_size, config.expert_size)
    if form.shapes != wanted:
        raise mismatch("experts shaped", form.shapes, wanted)


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
        ids |= end_ids(values, name, folder.name)
    end = tokenizer.token_id(template.eos_token) if template.eos_token else None
    return frozenset(ids if end is None else ids | {end})
