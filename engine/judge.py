"""Whether a model would run on this computer and how fast, before it is downloaded. Imports no tensor library.

All that differs from loading is how the footprint is found: from headers on the Hub, or from the catalogue's geometry. Plan and
prediction are the loader's own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.checkpoint.experts import map_experts
from engine.checkpoint.index import Checkpoint, open_checkpoint
from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine, Rates
from engine.hardware.probe import probe
from engine.meter import Link
from engine.models.registry import SUPPORTED, find
from engine.plan.footprint import Footprint
from engine.plan.plan import make_plan
from engine.plan.predict import predict
from engine.protocol import Fit, HubModel, ModelEntry, Plan, Release, Verdict
from engine.store.catalogue import CatalogueModel
from engine.store.formats import format_of, unread_method
from engine.store.loads import known_rates
from engine.store.target import free_bytes, hub_cache
from engine.store.web import Line
from engine.units import GB, format_bytes

_MORE_RAM = 20 * GB
_BLOCK = 4096  # a direct read takes up to one more at each end
_BITS = {"BF16": 16.0, "FP8": 8.0, "MXFP4": 4.25, "NVFP4": 4.5}  # of a weight with its scales
_EMBEDDING_BYTES = 2


@dataclass(frozen=True, slots=True)
class Ground:
    """What a model would meet here. `free_bytes` are those of the drive that it would go to."""

    machine: Machine
    rates: Rates | None
    free_bytes: int

    @property
    def words(self) -> str:
        """'20.9 GB of memory free, 212 GB on the drive, which reads 1.9 GB/s'."""
        memory = f"{format_bytes(self.machine.ram_available)} of memory free"
        drive = f"{format_bytes(self.free_bytes)} on the drive"
        rate = f", which reads {self.rates.ceilings[Link.DISK]:.1f} GB/s" if self.rates is not None else ""
        return f"{memory}, {drive}{rate}."


def look_around(data: Path, folder: str) -> Ground:
    """`folder` is the chosen one; empty for the Hugging Face cache."""
    return Ground(probe(), known_rates(data), free_bytes(Path(folder) if folder else hub_cache()))


def judge(footprint: Footprint, download_bytes: int, ground: Ground) -> Verdict:
    """Of a model that the engine can run. `download_bytes` is what the drive must take."""
    try:
        plan = make_plan(ground.machine, footprint, Wishes())
    except EngineError as error:
        return Verdict(Fit.NO_MEMORY, error.text)
    speed, more = None, None
    if ground.rates is not None:
        roomier = replace(ground.machine, ram_available=ground.machine.ram_available + _MORE_RAM)
        better = make_plan(roomier, footprint, Wishes())
        speed = predict(plan, ground.rates, footprint.dense_read_bytes).predicted_tokens_per_second
        more = predict(better, ground.rates, footprint.dense_read_bytes).predicted_tokens_per_second
    is_resident = sum(plan.slots_per_layer) == footprint.experts_total
    if download_bytes > ground.free_bytes:
        fit, text = Fit.NO_SPACE, _no_space(download_bytes, ground.free_bytes)
    else:
        fit, text = (Fit.RAM if is_resident else Fit.DISK), _where(plan, footprint, is_resident=is_resident)
    gains = None if is_resident else more
    return Verdict(fit, text, speed, gains, _MORE_RAM if gains else 0)


def judge_checkpoint(checkpoint: Checkpoint, download_bytes: int, ground: Ground) -> Verdict:
    """Of one whose headers are known. Raises `EngineError` where they are damaged."""
    try:
        footprint = footprint_of(checkpoint)
    except EngineError as error:
        if error.code in ("model.architecture", "checkpoint.format", "checkpoint.no_experts"):
            return Verdict(Fit.UNSUPPORTED, error.text)
        raise
    if method := unread_method(checkpoint.config):
        return Verdict(Fit.UNSUPPORTED, f"Its weights are quantised in the way of {method}, which Stoker does not read yet.")
    return judge(footprint, download_bytes, ground)


def plan_remote(line: Line, repo: str, ground: Ground, is_stopped: Callable[[], bool]) -> tuple[HubModel, int]:
    """A repository on the Hub with its verdict, and how many files it takes. Raises `EngineError` or `StoppedError`."""
    from engine.store.headers import read_remote  # here, since they bring the Hub's client
    from engine.store.hub import check_repo_name, find_repository

    found = find_repository(line, check_repo_name(repo), "main", is_stopped)
    checkpoint = read_remote(line, found, is_stopped)
    verdict = judge_checkpoint(checkpoint, found.nbytes, ground)
    release = Release(found.repo, format_of(checkpoint), found.nbytes, verdict)
    architecture = str(checkpoint.config.get("model_type") or "")
    model = HubModel(found.repo.split("/")[-1], architecture, (release,), found.licence, found.gate)
    return model, len(found.files)


def judge_entry(entry: ModelEntry, ground: Ground) -> ModelEntry:
    """A model on this computer with its verdict, where it can be loaded."""
    if entry.problem:
        return entry
    try:
        return replace(entry, verdict=judge_checkpoint(open_checkpoint(Path(entry.path)), 0, ground))
    except EngineError as error:  # its headers are whole and say something odd: loading will say so too
        return replace(entry, problem=error.text)


def judge_catalogue(model: CatalogueModel, ground: Ground) -> HubModel:
    releases = tuple(
        Release(repo, form, nbytes, _judge_release(model, form, nbytes, ground)) for repo, form, nbytes in model.releases
    )
    return HubModel(
        model.name, model.architecture, releases, model.licence,
        total_params=model.total_params, active_params=model.active_params,
    )  # fmt: skip


def footprint_of(checkpoint: Checkpoint) -> Footprint:
    """As the loader finds it, from names and sizes alone. Raises `EngineError`."""
    architecture, config, name = find(checkpoint.config, checkpoint.name), checkpoint.config, checkpoint.name
    experts = map_experts(checkpoint, architecture.experts)
    largest = max((expert for layer in experts.ranges.values() for expert in layer), key=lambda expert: expert.nbytes)
    routed = sum(expert.nbytes for layer in experts.ranges.values() for expert in layer)
    embedding = checkpoint.tensors.get("model.embed_tokens.weight")
    looked_up = embedding.nbytes if embedding is not None and not config.get("tie_word_embeddings") else 0
    heads, hidden = _integer(config, name, "num_attention_heads"), _integer(config, name, "hidden_size")
    inner = "moe_intermediate_size" if "moe_intermediate_size" in config else "intermediate_size"
    return Footprint(
        name=name.split("/")[-1],
        architecture=architecture.model_type,
        weight_format=format_of(checkpoint),
        model_bytes=checkpoint.nbytes,
        dense_bytes=checkpoint.nbytes - routed,
        dense_read_bytes=checkpoint.nbytes - routed - looked_up,
        expert_bytes=experts.expert_bytes,
        slot_bytes=largest.nbytes + 2 * _BLOCK * len(largest.runs),
        num_moe_layers=len(experts.layers),
        num_experts=experts.num_experts,
        top_k=_integer(config, name, "num_experts_per_tok"),
        num_layers=_integer(config, name, "num_hidden_layers"),
        num_kv_heads=_integer(config, name, "num_key_value_heads", heads),
        head_dim=_integer(config, name, "head_dim", hidden // heads),
        hidden_size=hidden,
        expert_size=_integer(config, name, inner),
        vocab_size=_integer(config, name, "vocab_size"),
        max_context=_integer(config, name, "max_position_embeddings", 2048),
    )


def footprint_of_catalogue(model: CatalogueModel, form: str, nbytes: int) -> Footprint:
    """By arithmetic: the experts have their parameters times the format's bits, the dense part is the rest of the files."""
    shape = model.geometry
    expert_bytes = int(shape.matrices * shape.hidden * shape.expert_size * _BITS[form] / 8)
    dense = nbytes - shape.moe_layers * shape.experts * expert_bytes
    return Footprint(
        name=model.name,
        architecture=model.architecture,
        weight_format=form,
        model_bytes=nbytes,
        dense_bytes=dense,
        dense_read_bytes=dense - shape.vocab * shape.hidden * _EMBEDDING_BYTES,
        expert_bytes=expert_bytes,
        slot_bytes=expert_bytes + 2 * _BLOCK,
        num_moe_layers=shape.moe_layers,
        num_experts=shape.experts,
        top_k=shape.top_k,
        num_layers=shape.layers,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        hidden_size=shape.hidden,
        expert_size=shape.expert_size,
        vocab_size=shape.vocab,
        max_context=shape.max_context,
    )


def _judge_release(model: CatalogueModel, form: str, nbytes: int, ground: Ground) -> Verdict:
    if model.architecture not in SUPPORTED:
        return Verdict(Fit.UNSUPPORTED, f"Stoker does not run the architecture {model.architecture} yet.")
    return judge(footprint_of_catalogue(model, form, nbytes), nbytes, ground)


def _where(plan: Plan, footprint: Footprint, *, is_resident: bool) -> str:
    experts = footprint.experts_total * footprint.expert_bytes
    if is_resident:
        return f"All of it, {format_bytes(footprint.dense_bytes + experts)}, fits into the memory that is free now."
    held = sum(plan.slots_per_layer) * footprint.expert_bytes
    return (
        f"{format_bytes(held)} of its {format_bytes(experts)} of experts fit into memory; "
        "the others are read from disk when a token needs them."
    )


def _no_space(wanted: int, free: int) -> str:
    missing = format_bytes(wanted - free)
    return f"It takes {format_bytes(wanted)} and the drive has {format_bytes(free)} free: it needs {missing} more."


def _integer(config: dict[str, Any], name: str, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        hint = "Choose another release of this model."
        raise EngineError("model.bad_config", f"config.json of {name} has no usable {key}.", hint)
    return value
