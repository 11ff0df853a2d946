"""Whether a model would run on this computer and how fast, before it is downloaded. Imports no tensor library.

All that differs from loading is how the footprint is found: from headers on the Hub, or from the catalogue's geometry. Plan and
prediction are the loader's own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.checkpoint.experts import map_experts
from engine.checkpoint.index import Checkpoint, open_checkpoint, suggested_expert_ram
from engine.checkpoint.naming import model_name
from engine.config import NO_WISHES, Wishes
from engine.errors import EngineError
from engine.hardware.drive import drive_of
from engine.hardware.machine import DriveFacts, Gpu, Machine
from engine.hardware.memory import held_bytes
from engine.hardware.probe import probe
from engine.knowledge import Notebook, model_key
from engine.models.geometry import MOST, cache_of
from engine.models.published import text_part
from engine.models.registry import SUPPORTED, find
from engine.models.stated import check_stated
from engine.plan.footprint import Compressed, Footprint, experts_resident
from engine.plan.forecast import NOTHING, Knowledge, fit_of, forecast
from engine.plan.plan import (
    DEFAULT_CONTEXT,
    LEAST_CARD_SLOTS,
    PREFILL_CHUNK,
    SHORTEST_CONTEXT,
    least_vram,
    make_plan,
    vram_rooms,
)
from engine.protocol import Fit, HubModel, ModelEntry, Plan, Release, Verdict, WishLimits
from engine.store.catalogue import CatalogueModel, read_catalogue
from engine.store.files import Repository
from engine.store.formats import format_of, unread_method
from engine.store.target import free_bytes, hub_cache
from engine.store.web import Line
from engine.units import MB, format_bytes

_BLOCK = 4096  # a direct read takes up to one more at each end
_BITS = {"BF16": 16.0, "FP8": 8.0, "MXFP4": 4.25, "NVFP4": 4.5}  # of a weight with its scales
_EMBEDDING_BYTES = 2
_TOP_K, _TOP_K_OF = "num_experts_per_tok", {"gemma4": "top_k_experts", "gemma4_text": "top_k_experts"}
_LONGEST_CONTEXT = 1 << 20  # that anybody may wish for
_MOST_INDEX_BYTES = 2 * MB  # that are worth reading for a plan


@dataclass(frozen=True, slots=True)
class Ground:
    """What a model would meet here. `free_bytes` are those of the drive that it would go to, `folder` lies on it.

    `notebook` knows what was measured on this computer; None for nothing.
    """

    machine: Machine
    notebook: Notebook | None
    free_bytes: int
    folder: Path = Path()

    @property
    def words(self) -> str:
        """'20.9 GB of memory free, 212 GB on the drive, which reads 1.9 GB/s'."""
        memory = f"{format_bytes(self.machine.ram_available)} of memory free"
        drive = f"{format_bytes(self.free_bytes)} on the drive"
        rates = None if self.notebook is None else self.notebook.latest(self.folder)
        rate = f", which reads {rates.disk_gbps:.1f} GB/s" if rates else ""
        return f"{memory}, {drive}{rate}."

    @property
    def machine_here(self) -> Machine:
        """The machine with the drive in question as its first."""
        drive = drive_of(self.folder)
        facts = DriveFacts(str(self.folder), drive.device, drive.mount, free_bytes=self.free_bytes)
        return replace(self.machine, drives=(facts, *self.machine.drives))

    def knowledge(self, footprint: Footprint, key: str = "") -> Knowledge:
        return NOTHING if self.notebook is None else self.notebook.knowledge(footprint, self.folder, key)


def look_around(data: Path, folder: str, engine_pid: int = 0) -> Ground:
    """`folder` is the chosen one; empty for the Hugging Face cache. What the engine of that number holds counts as free."""
    machine, place = probe(), Path(folder) if folder else hub_cache()
    if engine_pid:
        most = min(machine.ram_total, machine.ram_limit or machine.ram_total)
        available = min(most, machine.ram_available + held_bytes(engine_pid))
        cards = tuple(without_holder(gpu, engine_pid) for gpu in machine.gpus)
        machine = replace(machine, ram_available=max(machine.ram_available, available), gpus=cards)
    return Ground(machine, Notebook(data, machine), free_bytes(place), place)


def without_holder(gpu: Gpu, pid: int) -> Gpu:
    """As if that process held none of the card's memory."""
    held = sum(one.nbytes for one in gpu.vram_holders if one.pid == pid)
    if not held or gpu.vram_free is None:
        return gpu
    return replace(gpu, vram_free=min(gpu.vram_free + held, gpu.vram_total or gpu.vram_free + held))


def judge(
    footprint: Footprint,
    download_bytes: int,
    ground: Ground,
    wishes: Wishes = NO_WISHES,
    known: Knowledge | None = None,
    suggested_ram: str | None = None,
) -> Verdict:
    """Of a model that the engine can run. `download_bytes` is what the drive must take."""
    try:
        plan = forecast(ground.machine_here, footprint, wishes, known or ground.knowledge(footprint), suggested_ram)
    except EngineError as error:
        return Verdict(Fit.NO_MEMORY, error.text, hint=error.hint)
    fit, text = fit_of(plan), _where(plan, footprint)
    if download_bytes > ground.free_bytes:
        fit, text = Fit.NO_SPACE, _no_space(download_bytes, ground.free_bytes)
    return Verdict(fit, text, plan.predicted_tokens_per_second, plan=plan)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a plan needs of one model, so that another wish reads nothing again."""

    model: HubModel  # with one release, not judged yet
    num_files: int
    download_bytes: int  # 0 for a model that is here
    footprint: Footprint | None  # None where `unsupported` says why
    unsupported: str = ""
    folder: Path | None = None  # of a model that is here
    key: str = ""  # by which its answers and its heat are kept
    suggested: str | None = None  # memory for experts, by the model itself
    caution: str = ""


def read_named(line: Line, name: str, is_stopped: Callable[[], bool]) -> Facts:
    """A repository on the Hub, or the whole path of a model's folder, by its headers.

    Where the Hub cannot be reached, a repository of the catalogue is known by the catalogue's geometry. Raises `EngineError` or
    `StoppedError`.
    """
    if (folder := Path(name)).is_absolute():
        return _read_folder(folder)
    try:
        found, checkpoint = _read_remote(line, name, is_stopped)
    except EngineError as error:
        facts = _from_catalogue(name, error) if error.code == "hub.unreachable" else None
        if facts is None:
            raise
        return facts
    footprint, unsupported = _footprint_or_why(checkpoint)
    release = Release(found.repo, format_of(checkpoint), found.nbytes)
    architecture = str(checkpoint.config.get("model_type") or "")
    model = HubModel(found.repo.split("/")[-1], architecture, (release,), found.licence, found.gate)
    return Facts(model, len(found.files), found.nbytes, footprint, unsupported)


def plan_facts(facts: Facts, ground: Ground, wishes: Wishes = NO_WISHES) -> tuple[HubModel, WishLimits | None]:
    """The model with its verdict, and between which wishes it can be planned. Arithmetic alone."""
    if facts.folder is not None:
        ground = replace(ground, folder=facts.folder, free_bytes=free_bytes(facts.folder))
    verdict, limits = Verdict(Fit.UNSUPPORTED, facts.unsupported), None
    if (footprint := facts.footprint) is not None:
        known = ground.knowledge(footprint, facts.key)
        verdict = judge(footprint, facts.download_bytes, ground, wishes, known, facts.suggested)
        limits = _limits(footprint, ground, verdict.plan, wishes)
    (release,) = facts.model.releases
    return replace(facts.model, releases=(replace(release, verdict=verdict),)), limits


def _limits(footprint: Footprint, ground: Ground, plan: Plan | None, wishes: Wishes) -> WishLimits:
    """At the context of the plan, or at the one wished for."""
    context = plan.context if plan is not None else wishes.context
    asked = replace(wishes, context=context, expert_ram=None)
    shortest, longest = min(SHORTEST_CONTEXT, footprint.max_context), min(footprint.max_context, _LONGEST_CONTEXT)
    least, most = footprint.floor_bytes, _most_expert_ram(footprint, ground.machine, asked)
    least_card, most_card = _vram_limits(footprint, ground.machine, asked)
    return WishLimits(shortest, longest, min(least, most), most, least_vram=least_card, most_vram=most_card)


def _most_expert_ram(footprint: Footprint, machine: Machine, wishes: Wishes) -> int:
    """With as much of the graphics cards as is wished for, or as they have where that is refused."""
    for asked in (wishes, replace(wishes, vram_limit=None)):
        try:
            return make_plan(machine, footprint, asked).expert_ram_bytes
        except EngineError:
            continue
    return footprint.floor_bytes  # there is no room at all; what is wished for is refused with its numbers


def _vram_limits(footprint: Footprint, machine: Machine, wishes: Wishes) -> tuple[int, int]:
    """The least of the cards' memory that is of use, and the most; both 0 where they cannot serve the model."""
    rooms, kept = vram_rooms(machine), replace(footprint, kv_type=wishes.kv_type or footprint.kv_type)
    context = wishes.context or min(DEFAULT_CONTEXT, footprint.max_context)
    least = least_vram(kept, context, wishes.prefill_chunk or PREFILL_CHUNK)
    if not rooms or rooms[0] < least:
        return 0, 0
    everything = least + (footprint.experts_total - LEAST_CARD_SLOTS) * footprint.slot_bytes
    return least, min(sum(rooms), everything)


def _read_folder(folder: Path) -> Facts:
    checkpoint = open_checkpoint(folder)
    footprint, unsupported = _footprint_or_why(checkpoint)
    release = Release(str(folder), format_of(checkpoint), checkpoint.nbytes)
    model = HubModel(model_name(folder), str(checkpoint.config.get("model_type") or ""), (release,))
    files = {ref.file for ref in checkpoint.tensors.values()}
    return Facts(
        model, len(files), 0, footprint, unsupported, folder, model_key(checkpoint), suggested_expert_ram(folder)
    )  # fmt: skip


def _from_catalogue(repo: str, error: EngineError) -> Facts | None:
    for model in read_catalogue():
        for name, form, nbytes in model.releases:
            if name.lower() == repo.lower() and model.architecture in SUPPORTED:
                offer = HubModel(
                    model.name, model.architecture, (Release(name, form, nbytes, is_about=True),), model.licence,
                    total_params=model.total_params, active_params=model.active_params,
                )  # fmt: skip
                caution = f"Planned from the catalogue's figures, since its own headers cannot be read: {error.text}"
                return Facts(offer, 0, nbytes, footprint_of_catalogue(model, form, nbytes), caution=caution)
    return None


def _footprint_or_why(checkpoint: Checkpoint) -> tuple[Footprint | None, str]:
    """None with the reason where the engine cannot run it. Raises `EngineError` where headers are damaged."""
    try:
        footprint = footprint_of(checkpoint)
    except EngineError as error:
        if error.code in ("model.architecture", "checkpoint.format", "checkpoint.no_experts"):
            return None, error.text
        raise
    if method := unread_method(checkpoint.config):
        return None, f"Its weights are quantised in the way of {method}, which Stoker does not read yet."
    return footprint, ""


def remote_footprint(line: Line, repo: str, is_stopped: Callable[[], bool]) -> tuple[Footprint, int]:
    """Of a repository on the Hub, with the bytes of its files. Raises `EngineError` or `StoppedError`."""
    found, checkpoint = _read_remote(line, repo, is_stopped)
    footprint = footprint_of(checkpoint)
    if method := unread_method(checkpoint.config):
        text = f"The weights of {found.repo} are quantised in the way of {method}, which Stoker does not read yet."
        raise EngineError("checkpoint.format", text, "Choose another release of this model.")
    return footprint, found.nbytes


def _read_remote(line: Line, repo: str, is_stopped: Callable[[], bool]) -> tuple[Repository, Checkpoint]:
    from engine.store.headers import read_remote  # here, since they bring the Hub's client
    from engine.store.hub import check_repo_name, find_repository

    found = find_repository(line, check_repo_name(repo), "main", is_stopped, _MOST_INDEX_BYTES)
    return found, read_remote(line, found, is_stopped)


def judge_entry(entry: ModelEntry, ground: Ground) -> ModelEntry:
    """A model on this computer with its verdict, where it can be loaded."""
    if entry.problem:
        return entry
    try:
        model, _ = plan_facts(_read_folder(Path(entry.path)), ground)
        return replace(entry, verdict=model.releases[0].verdict)
    except EngineError as error:  # its headers are whole and say something odd: loading will say so too
        return replace(entry, problem=error.text)


def judge_catalogue(model: CatalogueModel, ground: Ground) -> HubModel:
    releases = tuple(
        Release(repo, form, nbytes, _judge_release(model, form, nbytes, ground), repo in model.rough)
        for repo, form, nbytes in model.releases
    )
    return HubModel(
        model.name, model.architecture, releases, model.licence,
        total_params=model.total_params, active_params=model.active_params,
    )  # fmt: skip


def footprint_of(checkpoint: Checkpoint) -> Footprint:
    """As the loader finds it, from names and sizes alone. Raises `EngineError`."""
    checkpoint = text_part(checkpoint)
    check_stated(checkpoint)
    architecture, config, name = find(checkpoint.config, checkpoint.name), checkpoint.config, checkpoint.name
    cache = cache_of(config)
    experts = map_experts(checkpoint, architecture.experts)
    largest = max((expert for layer in experts.ranges.values() for expert in layer), key=lambda expert: expert.nbytes)
    routed = sum(expert.nbytes for layer in experts.ranges.values() for expert in layer)
    num_layers = _integer(config, name, "num_hidden_layers")
    unused = sum(ref.nbytes for tensor, ref in checkpoint.tensors.items() if _guesses_further(tensor, num_layers))
    dense = checkpoint.nbytes - routed - unused
    embedding = checkpoint.tensors.get("model.embed_tokens.weight")
    looked_up = embedding.nbytes if embedding is not None and not config.get("tie_word_embeddings") else 0
    head = sum(ref.nbytes for tensor, ref in checkpoint.tensors.items() if tensor.startswith("lm_head."))
    heads, hidden = _integer(config, name, "num_attention_heads"), _integer(config, name, "hidden_size")
    inner = "intermediate_size" if config.get("moe_intermediate_size") is None else "moe_intermediate_size"
    if architecture.whole is not None and architecture.is_dense:
        inner = "shared_intermediate_size"
    return Footprint(
        name=name.split("/")[-1],
        architecture=architecture.model_type,
        weight_format=format_of(checkpoint),
        model_bytes=checkpoint.nbytes,
        dense_bytes=dense,
        dense_read_bytes=dense - looked_up,
        expert_bytes=experts.expert_bytes,
        slot_bytes=largest.nbytes + 2 * _BLOCK * len(largest.runs),
        num_moe_layers=len(experts.layers),
        num_experts=experts.num_experts,
        top_k=1 if architecture.is_dense else _integer(config, name, _TOP_K_OF.get(architecture.model_type, _TOP_K)),
        num_layers=num_layers,
        num_kv_heads=cache.heads or _integer(config, name, "num_key_value_heads", heads),
        head_dim=cache.head_dim or _integer(config, name, "head_dim", hidden // heads),
        kv_layers=cache.layers,
        windows=cache.windows,
        choice=cache.choice,
        compressed=cache.compressed,
        state_bytes=cache.state_bytes,
        hidden_size=hidden,
        expert_size=_integer(config, name, inner),
        vocab_size=_integer(config, name, "vocab_size"),
        max_context=_integer(config, name, "max_position_embeddings", 2048),
        looked_up_bytes=looked_up,
        head_bytes=head or (embedding.nbytes if embedding is not None else 0),
        num_heads=heads,
    )


def _guesses_further(tensor: str, num_layers: int) -> bool:
    """Of the layers after the last, which guess several tokens at once and are not loaded."""
    layer = re.match(r"model\.layers\.(\d+)\.", tensor)
    return tensor.startswith("mtp.") or (layer is not None and int(layer[1]) >= num_layers)


def footprint_of_catalogue(model: CatalogueModel, form: str, nbytes: int) -> Footprint:
    """By arithmetic: the experts have their parameters times the format's bits, the dense part is the rest of the files."""
    shape = model.geometry
    expert_bytes = int(shape.matrices * shape.hidden * shape.expert_size * _BITS[form] / 8)
    unused = shape.further_layers * shape.experts * expert_bytes
    dense = nbytes - unused - shape.moe_layers * shape.experts * expert_bytes
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
        windows=((shape.window, shape.windowed_layers),) if shape.windowed_layers else (),
        compressed=tuple((Compressed(ratio, widths, top), layers) for ratio, widths, top, layers in shape.compressed),
        hidden_size=shape.hidden,
        expert_size=shape.expert_size,
        vocab_size=shape.vocab,
        max_context=shape.max_context,
        looked_up_bytes=shape.vocab * shape.hidden * _EMBEDDING_BYTES,
        head_bytes=shape.vocab * shape.hidden * _EMBEDDING_BYTES,
    )


def _judge_release(model: CatalogueModel, form: str, nbytes: int, ground: Ground) -> Verdict:
    if model.architecture not in SUPPORTED:
        return Verdict(Fit.UNSUPPORTED, f"Stoker does not run the architecture {model.architecture} yet.")
    return judge(footprint_of_catalogue(model, form, nbytes), nbytes, ground)


def _where(plan: Plan, footprint: Footprint) -> str:
    experts = footprint.experts_total * footprint.expert_bytes
    if fit_of(plan) is not Fit.DISK:
        return f"All of it, {format_bytes(footprint.dense_bytes + experts)}, fits into the memory that is free now."
    ram_slots, total = sum(plan.slots_per_layer), footprint.experts_total
    held = experts_resident(plan.card_slots, ram_slots, plan.top_k, total) * footprint.expert_bytes
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
    if type(value) is not int or not 1 <= value <= MOST:
        hint = "Choose another release of this model."
        raise EngineError("model.bad_config", f"config.json of {name} has no usable {key}.", hint)
    return value
