"""Joins checkpoint, plan, tiers, experts and model: the one place that knows them all. Front ends see nothing below it."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import bench
from engine.checkpoint.experts import ExpertMap, map_experts
from engine.checkpoint.index import Checkpoint, open_checkpoint, read_json
from engine.config import Sampling, Wishes, check_sampling
from engine.errors import EngineError
from engine.experts.bind import ExpertBinder, ExpertFormat, recognise_experts
from engine.experts.cache import NUM_GUESTS, ExpertCache
from engine.experts.policy import Heat
from engine.experts.run import ExpertRunner
from engine.generate import Limits, Token, generate
from engine.hardware.probe import probe
from engine.kernels.kernels import Kernels, open_kernels
from engine.kv.cache import KvCache
from engine.meter import Meter, Traffic
from engine.models.decoder import swiglu_shapes
from engine.models.dense import Dense, find_dense
from engine.models.hf_config import HfConfig
from engine.models.lookahead import NextRouter
from engine.models.registry import Architecture, find
from engine.plan.footprint import Footprint
from engine.plan.plan import make_plan
from engine.plan.predict import predict
from engine.protocol import ChatMessage, Plan
from engine.quant.registry import quantization_of
from engine.sample import make_sampler
from engine.session import Session
from engine.text.template import ChatTemplate
from engine.text.tokenizer import StreamDecoder, Tokenizer
from engine.tiers.arena import RamArena, slot_stride
from engine.tiers.dense import load_dense
from engine.tiers.disk import DiskReader

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
    checkpoint = open_checkpoint(folder)
    architecture = find(checkpoint.config, checkpoint.name)
    module = architecture.load()
    config = module.Config.read(checkpoint.config, checkpoint.name)
    dense = find_dense(checkpoint, module.weight_shapes(config))
    experts = map_experts(checkpoint, architecture.experts)
    expert_format = recognise_experts(experts, architecture.experts, quantization_of(checkpoint.config))
    _check_experts(checkpoint, config, experts, expert_format)
    footprint = _footprint(checkpoint, architecture, config, dense, experts, expert_format)
    return Source(checkpoint, architecture, config, dense, experts, expert_format, footprint)


def plan_for(source: Source, wishes: Wishes) -> Plan:
    """The plan on this machine now, without a prediction. Raises `EngineError` with the nearest plan that works."""
    return make_plan(probe(), source.footprint, wishes, _suggested_expert_ram(source.checkpoint.folder))


def predicted_plan_for(source: Source, wishes: Wishes) -> Plan:
    """The plan with its prediction, from rates measured now (about a second). Loads nothing."""
    plan = plan_for(source, wishes)
    reader = DiskReader()
    try:
        return _with_prediction(source, plan, reader, open_kernels()[0])
    finally:
        reader.close()


def _with_prediction(source: Source, plan: Plan, reader: DiskReader, kernels: Kernels) -> Plan:
    rates = bench.measure(source.experts, source.expert_format, source.config.math, reader, kernels)
    return predict(plan, rates, source.footprint.dense_read_bytes)


def open_session(
    source: Source, plan: Plan, reader: DiskReader, kernels: Kernels, progress: LoadProgress = lambda *_: None
) -> Session:
    """Dense weights into RAM, empty expert slots and KV cache as planned. Raises `EngineError`."""
    experts, footprint, meter = source.experts, source.footprint, Meter()
    refs = [*source.dense.refs, *experts.small_refs()]
    tensors = load_dense(reader, refs, lambda done, total: progress("Reading the dense weights", done, total))
    arena = RamArena(footprint.slot_bytes, sum(plan.slots_per_layer))
    policy = Heat(experts.layers, experts.num_experts)
    num_guests = max(NUM_GUESTS, 2 * footprint.top_k)  # a token's misses, and as many that are read ahead for the next layer
    cache = ExpertCache(experts.layers, plan.slots_per_layer, policy, num_guests)
    binder = ExpertBinder(experts, source.expert_format, tensors)
    binder.check_resident()
    binder.check_layout(arena.tensor(0), kernels.check)
    weights, rows = source.dense.bind(tensors, kernels.check), source.architecture
    look_ahead = NextRouter(weights, rows.router, rows.norm, experts.layers, footprint.top_k, kernels)
    runner = ExpertRunner(experts, binder, source.config.math, cache, arena, reader, kernels, meter, look_ahead)
    kv = KvCache(footprint.num_layers, footprint.num_kv_heads, footprint.head_dim, plan.context)
    model = source.architecture.load().build(source.config, weights, kernels)
    return Session(model, kv, runner, reader, meter, footprint.dense_read_bytes)


class Engine:
    """A loaded model. One thread at a time may use it; `close` gives everything back."""

    def __init__(
        self,
        folder: Path,
        wishes: Wishes,
        progress: LoadProgress = lambda *_: None,
        first_messages: Sequence[ChatMessage] = (),
    ) -> None:
        """Load a model as planned; a conversation known already is checked before anything large is allocated.

        Raises `EngineError`; nothing stays allocated then.
        """
        source = inspect(folder)
        self._tokenizer = Tokenizer(folder)
        self._template = ChatTemplate(folder)
        self._end_ids = _end_ids(folder, source.checkpoint.config, self._tokenizer, self._template)
        _check_vocabulary(source, self._tokenizer)
        plan = plan_for(source, wishes)
        self._context, self._rows = plan.context, source.footprint.vocab_size
        if first_messages:
            self.encode(first_messages)
        kernels, self._kernels_notice = open_kernels()
        self._reader = DiskReader()
        try:
            self.session = open_session(source, plan, self._reader, kernels, progress)
            progress("Measuring this computer", 0, 0)
            self.plan = _with_prediction(source, plan, self._reader, kernels)
        except BaseException:
            self._reader.close()
            raise

    @property
    def notice(self) -> str:
        """What makes this engine slower than it could be, in a sentence or two; empty when nothing does."""
        return " ".join(filter(None, (self._kernels_notice, self._reader.notice)))

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Prompt tokens of a conversation. Raises `EngineError` where it does not fit the context."""
        text = self._template.render(messages)
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
                f"tokenizer.json gives token {max(prompt)}, and the weights have rows for {self._rows}.",
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
        limits = Limits(sampling.max_tokens, self._end_ids, sampling.stop)
        decoder = StreamDecoder(self._tokenizer)
        return generate(self.session, prompt, make_sampler(sampling), decoder, limits, should_stop, progress)

    def close(self) -> None:
        self._reader.close()


def _footprint(
    checkpoint: Checkpoint, architecture: Architecture, config: Any, dense: Dense, experts: ExpertMap, form: ExpertFormat
) -> Footprint:
    dense_bytes = sum(ref.nbytes for ref in dense.refs) + sum(ref.nbytes for ref in experts.small_refs())
    looked_up = 0 if config.tied else checkpoint.tensor("model.embed_tokens.weight").nbytes
    return Footprint(
        name=checkpoint.name,
        architecture=architecture.model_type,
        weight_format=form.label,
        model_bytes=checkpoint.nbytes,
        dense_bytes=dense_bytes,
        dense_read_bytes=dense_bytes - looked_up,
        expert_bytes=experts.expert_bytes,
        slot_bytes=slot_stride(experts),
        num_moe_layers=len(experts.layers),
        num_experts=experts.num_experts,
        top_k=config.top_k,
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        hidden_size=config.hidden_size,
        expert_size=config.expert_size,
        vocab_size=config.vocab_size,
        max_context=HfConfig(checkpoint.config, checkpoint.name).integer("max_position_embeddings", 2048),
    )


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
            f"tokenizer.json of {source.checkpoint.name} has {tokenizer.vocab_size} tokens, the weights have rows for {rows}.",
            "They are of different models: get both again.",
        )


def _end_ids(folder: Path, config: dict[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> frozenset[int]:
    """All tokens that end a turn: from the generation config, the config and the tokenizer's own end token."""
    file = folder / "generation_config.json"
    ids: set[int] = set()
    for values in (read_json(file) if file.is_file() else {}, config):
        found = values.get("eos_token_id")
        ids.update(item for item in (found if isinstance(found, list) else [found]) if isinstance(item, int))
    end = tokenizer.token_id(template.eos_token) if template.eos_token else None
    return frozenset(ids if end is None else ids | {end})


def _suggested_expert_ram(folder: Path) -> str | None:
    """A model that Stoker made may carry its own budget in stoker.json, so that a demo shows what it is for."""
    try:
        value = json.loads((folder / "stoker.json").read_text(encoding="utf-8")).get("expert_ram")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None
