"""A checkpoint read and checked as far as that is possible before its weights: what everything else begins with."""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.experts import ExpertMap, map_experts
from engine.checkpoint.index import Checkpoint, open_checkpoint
from engine.errors import EngineError
from engine.experts.bind import ExpertFormat, recognise_experts
from engine.kv.cache import KvCache
from engine.models.decoder import swiglu_shapes
from engine.models.dense import Dense, check_surplus, find_dense
from engine.models.hf_config import HfConfig
from engine.models.published import text_part
from engine.models.registry import Architecture, find
from engine.models.stated import check_stated
from engine.plan.footprint import Footprint
from engine.quant.registry import quantization_of
from engine.tiers.arena import slot_stride

EMBEDDING = "model.embed_tokens.weight"


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
        check_surplus(checkpoint, dense, architecture.experts, config.num_layers)
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


def _footprint(
    checkpoint: Checkpoint, architecture: Architecture, config: Any, dense: Dense, experts: ExpertMap, form: ExpertFormat
) -> Footprint:
    dense_bytes = sum(ref.nbytes for ref in dense.refs) + sum(ref.nbytes for ref in experts.small_refs())
    looked_up = 0 if config.tied else checkpoint.tensor(EMBEDDING).nbytes
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
        choice=config.choice,
        compressed=tuple(sorted(Counter(filter(None, config.kept_compressed)).items())),
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
