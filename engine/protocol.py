"""The wire between window and engine: one JSON object per line, each a frozen dataclass tagged with its class name.

All that `app/` may import from `engine/`. Requests travel on the child's stdin, events on its stdout.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

from engine.config import Sampling, Wishes
from engine.hardware.machine import Cpu, DriveFacts, DriveKind, Gpu, GpuKind, Machine, PcieLink
from engine.meter import Link, LinkUse, Origin, Phase, Traffic

__all__ = [
    "PROTOCOL_VERSION", "AddDownload", "AddFolder", "Cancel", "Card", "Change", "ChatMessage", "Cpu", "DownloadAction",
    "DownloadJob", "DownloadProgress", "DownloadState", "Downloads", "DriveFacts", "DriveKind", "EditDownload", "Failed",
    "Finished", "FirstToken", "Fit", "ForgetFolder", "Gain", "Gate", "Generate", "Gpu", "GpuKind", "Hello", "HubModel",
    "HubModels", "HubSort", "LimitDownloads", "Link", "LinkUse", "ListCatalogue", "ListDownloads", "ListModels", "Load",
    "Loaded", "Machine", "MachineFacts", "MachineRates", "MeasureMachine", "Message", "Meter", "ModelEntry", "ModelState",
    "Models", "MoveModel", "Origin", "PcieLink", "Phase", "Plan", "PlanFor", "ProbeMachine", "Progress", "ProtocolError",
    "ReadCard", "ReadRates", "Release", "RemoveModel", "Removed", "RepoPlan", "RunDownloads", "Sampling", "SearchHub",
    "Started", "StopReason", "Text", "Tier", "Traffic", "Verdict", "VerifyModel", "WishLimits", "Wishes", "decode", "encode",
    "request_id_of",
]  # fmt: skip

PROTOCOL_VERSION = 1


class ProtocolError(Exception):
    """A line that is no message of this version."""


class StopReason(StrEnum):
    END = "end"  # the model ended its turn
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # "system", "user" or "assistant"
    content: str


class ModelState(StrEnum):
    UNVERIFIED = "unverified"  # it was there before: nobody compared its checksums
    ARRIVING = "arriving"  # on its way, or left half way
    WHOLE = "whole"  # every checksum was right
    DAMAGED = "damaged"  # a checksum is wrong: its download again brings that file alone
    AWAY = "away"  # its drive is not connected


class Fit(StrEnum):
    """Where a model would live here, the fastest first; the last three do not run."""

    VRAM = "vram"
    VRAM_RAM = "vram_ram"
    RAM = "ram"
    DISK = "disk"  # experts stream from it
    NO_SPACE = "no_space"  # it would run, and the drive cannot take it
    NO_MEMORY = "no_memory"  # not even its dense part and one token's experts have room
    UNSUPPORTED = "unsupported"  # architecture or format

    @property
    def runs(self) -> bool:
        return self in (Fit.VRAM, Fit.VRAM_RAM, Fit.RAM, Fit.DISK)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds from a question to the first token of its answer: `low` with the experts in memory, `high` just after loading."""

    prompt_tokens: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tier:
    """What one kind of memory or the drive holds of a model. `room` is what Stoker may use of it, in bytes as all others."""

    link: Link  # VRAM, RAM or disk
    name: str  # of the card or the drive; "RAM"
    room: int
    dense: int = 0
    kv: int = 0
    workspace: int = 0
    experts: int = 0
    num_experts: int = 0
    model: int = 0  # of the drive: all of its files

    @property
    def used(self) -> int:
        return self.dense + self.kv + self.workspace + self.experts + self.model


class Change(StrEnum):
    """What a person could change, about the computer or about what is asked of it."""

    RAM = "ram"
    DISK = "disk"
    CONTEXT = "context"
    EXPERT_RAM = "expert_ram"


@dataclass(frozen=True, slots=True)
class Gain:
    """What one change would bring. `text` names it ("32 GB more RAM"), `tokens_per_second` is afterwards.

    `amount` is in bytes: of RAM or a wish what is taken more, less than 0 where memory is given back; of a drive per second.
    """

    change: Change
    text: str
    amount: int
    tokens_per_second: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a model would run on this computer as it is now. `text` is one sentence with its numbers."""

    fit: Fit
    text: str
    tokens_per_second: tuple[float, float] | None = None  # None where this computer has not been measured yet
    hint: str = ""  # the nearest plan that can be met, where this one cannot
    plan: "Plan | None" = None  # with all its numbers, where there is one


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model folder on this computer. `problem` is empty when it can be loaded, else one sentence."""

    name: str
    path: str
    architecture: str
    weight_format: str
    bytes: int
    problem: str = ""
    repo: str = ""  # on the Hub, where it is known
    licence: str = ""
    state: ModelState = ModelState.UNVERIFIED
    is_ours: bool = False  # brought by Stoker, so that it may remove it
    last_used: float = 0.0  # seconds since 1970; 0 never
    verdict: Verdict | None = None  # of a download child alone, for models that can be loaded


class DownloadState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"  # by the person
    FAILED = "failed"  # `text` and `hint` say why; it goes on when resumed
    DONE = "done"


class DownloadAction(StrEnum):
    PAUSE = "pause"
    RESUME = "resume"
    MOVE = "move"  # to `position` in the queue, 0 the first
    CANCEL = "cancel"  # what has arrived is kept
    DELETE = "delete"  # what has arrived is deleted


@dataclass(frozen=True, slots=True)
class DownloadJob:
    """One repository in the queue, of which there is one job at most. Sizes are 0 until the Hub has told them."""

    repo: str
    revision: str
    folder: str  # the chosen folder; empty: where the model is already, else the Hugging Face cache
    state: DownloadState
    total_bytes: int = 0
    done_bytes: int = 0  # on the drive
    commit: str = ""
    code: str = ""  # of the error with which it failed, as in `Failed`
    text: str = ""  # why it failed, or what it waits for
    hint: str = ""


class Gate(StrEnum):
    OPEN = "open"
    TERMS = "terms"  # given at once to those who sign in and accept its terms
    REVIEW = "review"  # its makers decide who gets it


class HubSort(StrEnum):
    """As the Hub calls them."""

    DOWNLOADS = "downloads"
    TRENDING = "trendingScore"
    LIKES = "likes"
    UPDATED = "lastModified"


@dataclass(frozen=True, slots=True)
class Release:
    """A model in one weight format: a repository. `bytes` is 0 and `verdict` None where they are not known yet."""

    repo: str
    weight_format: str
    bytes: int
    verdict: Verdict | None = None
    is_about: bool = False  # the bytes are rounded, until the Hub is asked


@dataclass(frozen=True, slots=True)
class HubModel:
    """Parameters are counts, 0 where nobody tells."""

    name: str
    architecture: str
    releases: tuple[Release, ...]  # at least one
    licence: str = ""
    gate: Gate = Gate.OPEN
    total_params: int = 0
    active_params: int = 0  # per token
    downloads: int = 0  # last month
    likes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lives and what that should give. Made once by `engine.plan`; nothing is decided after it."""

    model_name: str
    architecture: str
    weight_format: str
    num_layers: int  # MoE layers
    num_experts: int  # per layer
    top_k: int
    expert_bytes: int
    slots_per_layer: tuple[int, ...]
    dense_bytes: int
    expert_ram_bytes: int
    kv_bytes: int
    workspace_bytes: int
    context: int
    model_bytes: int
    sentence: str  # why it is so, for the window and the terminal
    predicted: Traffic | None = None  # one decode token; None until the rates are measured
    predicted_tokens_per_second: tuple[float, float] | None = None  # low, high
    ceilings_gbps: dict[Link, float] = field(default_factory=dict)  # measured on this machine
    first_tokens: tuple[FirstToken, ...] = ()  # for prompts of 1K and 8K, as far as the context holds them
    limiting: Link | None = None  # the link that takes most of a token's time
    basis: str = ""  # where the hit rate of the prediction is from, in words
    unknown: str = ""  # why there is no prediction, where there is none: "cannot estimate, because …"
    vram_slots: int = 0  # experts in the memory of graphics cards; the loader uses none yet
    tiers: tuple[Tier, ...] = ()
    notes: tuple[str, ...] = ()  # what else a person should know, a sentence each
    gains: tuple[Gain, ...] = ()  # what one change of the computer would bring
    prices: tuple[Gain, ...] = ()  # what one step of a wish costs or brings


# Requests: window -> engine


@dataclass(frozen=True, slots=True)
class ListModels:
    request_id: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model by name or folder. One child loads one model; another model or plan is another child."""

    request_id: int
    model: str
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a whole conversation. The engine reuses what it has already read of it."""

    request_id: int
    messages: tuple[ChatMessage, ...]
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop `request_id` within one token; its `Finished` follows with `StopReason.CANCELLED`."""

    request_id: int


# Requests to a download child (`python -m engine download`), which serves the queue and the library without loading a model


@dataclass(frozen=True, slots=True)
class ListDownloads:
    """Answered by `Downloads`, as are the three that change the queue."""

    request_id: int


@dataclass(frozen=True, slots=True)
class AddDownload:
    """Put a repository into the queue; one that is there already goes on from where it is."""

    request_id: int
    repo: str
    revision: str = "main"
    folder: str = ""


@dataclass(frozen=True, slots=True)
class EditDownload:
    request_id: int
    repo: str
    action: DownloadAction
    position: int = 0


@dataclass(frozen=True, slots=True)
class LimitDownloads:
    """At most so many bytes per second for all of this child; 0 for no limit."""

    request_id: int
    bytes_per_second: int


@dataclass(frozen=True, slots=True)
class RunDownloads:
    """Work through the queue in order, with `DownloadProgress`, until nothing waits; then comes `Downloads`.

    `token` is for the Hub; empty for HF_TOKEN or the token file. It is kept nowhere.
    """

    request_id: int
    token: str = field(default="", repr=False)
    bytes_per_second: int = 0


@dataclass(frozen=True, slots=True)
class AddFolder:
    """List this model, or look for models in this folder from now on. Answered by `Models`."""

    request_id: int
    path: str


@dataclass(frozen=True, slots=True)
class ForgetFolder:
    """Take a folder off the list; its files stay. Answered by `Models`."""

    request_id: int
    path: str


@dataclass(frozen=True, slots=True)
class RemoveModel:
    """Delete the files of a model that Stoker brought. With `only_list` nothing is deleted: the answer names the files.

    Answered by `Removed`.
    """

    request_id: int
    path: str
    only_list: bool = False


@dataclass(frozen=True, slots=True)
class MoveModel:
    """Copy a model that Stoker brought below another folder, compare it, then delete the first. Answered by `Models`."""

    request_id: int
    path: str
    folder: str


@dataclass(frozen=True, slots=True)
class VerifyModel:
    """Compare every checksum of a model that Stoker brought. Answered by `Models`, in which it is whole or damaged."""

    request_id: int
    path: str


@dataclass(frozen=True, slots=True)
class ListCatalogue:
    """The models that people run, judged for this computer; needs no network. Answered by `HubModels`.

    `folder` is where a download would go, here and below; empty for the Hugging Face cache. `engine_pid` is the process whose
    model the next one would replace, so that its memory counts as free; 0 for none.
    """

    request_id: int
    folder: str = ""
    engine_pid: int = 0


@dataclass(frozen=True, slots=True)
class SearchHub:
    """Models in safetensors whose name holds `text`, without verdicts: ask `PlanFor`. Answered by `HubModels`."""

    request_id: int
    text: str
    sort: HubSort = HubSort.DOWNLOADS
    only_supported: bool = True  # architectures that the engine runs
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class PlanFor:
    """Judge a repository by its config.json and headers, some hundred KB. Answered by `RepoPlan`.

    What was read is kept for some minutes, so that other wishes for the same model are answered at once.
    """

    request_id: int
    repo: str  # or the whole path of a model's folder
    folder: str = ""
    token: str = field(default="", repr=False)
    wishes: Wishes = field(default_factory=Wishes)
    engine_pid: int = 0


@dataclass(frozen=True, slots=True)
class ReadCard:
    """What its makers say of a model. Answered by `Card`."""

    request_id: int
    repo: str
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ProbeMachine:
    """Look at this computer: seconds where there is a graphics card to try. Answered by `MachineFacts`.

    `folders` are those whose drives are looked at; without any, those in which models lie.
    """

    request_id: int
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRates:
    """What was measured on this computer before. Answered by `MachineRates`.

    `folder` is where models would go, here and below; empty for the Hugging Face cache.
    """

    request_id: int
    folder: str = ""


@dataclass(frozen=True, slots=True)
class MeasureMachine:
    """Measure drive, memory and kernels, with a model that is here or a scratch file: some ten seconds, in a child of its own.

    Tells `Progress` in parts of the whole; answered by `MachineRates`. After `Cancel` nothing is kept.
    """

    request_id: int
    folder: str = ""


# Events: engine -> window. Every request is answered by exactly one of Models, Loaded, Finished, Downloads, Removed, HubModels,
# RepoPlan, Card, MachineFacts, MachineRates or Failed.


@dataclass(frozen=True, slots=True)
class Hello:
    """First line of every child."""

    protocol_version: int
    stoker_version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Models:
    request_id: int
    models: tuple[ModelEntry, ...]
    folder: str  # where Stoker keeps models
    watched: tuple[str, ...] = ()  # every folder in which models were looked for


@dataclass(frozen=True, slots=True)
class Progress:
    """A long step of a request; `done` of `total` bytes or parts, `total` 0 when unknown."""

    request_id: int
    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Loaded:
    request_id: int
    plan: Plan
    notice: str = ""  # one sentence on what makes it slower or different than planned, for the person


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is known; prefill begins. `reused_tokens` of `prompt_tokens` are already in the KV cache."""

    request_id: int
    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer, at most 30 times a second. `tokens` is how many it took, `total_tokens` how many so far."""

    request_id: int
    text: str
    tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Meter:
    """One record per token since the last sample, at most 5 times a second; while the prompt is read, one per chunk."""

    request_id: int
    records: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: int
    stop_reason: StopReason
    prompt_tokens: int
    new_tokens: int
    first_token_seconds: float
    tokens_per_second: float  # decode only; 0 below two tokens
    context_used: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request will not be answered otherwise. `text` and `hint` are for the person."""

    request_id: int
    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Downloads:
    """The queue in its order, after the request has been done."""

    request_id: int
    jobs: tuple[DownloadJob, ...]


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Of the running job, at most 5 times a second, and whenever its state changes."""

    request_id: int
    job: DownloadJob
    file: str  # the one that is arriving
    verified_bytes: int  # compared with their checksum so far
    bytes_per_second: float | None  # None while nothing comes, or too little is known
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Removed:
    """`files` were deleted, or would be; other programs' files beside them stay."""

    request_id: int
    files: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class HubModels:
    request_id: int
    models: tuple[HubModel, ...]
    ground: str = ""  # of verdicts: what of this computer they were made for, in words


@dataclass(frozen=True, slots=True)
class WishLimits:
    """Between which wishes a model can be planned here now; bytes of memory for experts."""

    least_context: int
    most_context: int
    least_expert_ram: int  # one token's experts, and the next layer's
    most_expert_ram: int  # all experts, or what is free at the context of the plan


@dataclass(frozen=True, slots=True)
class RepoPlan:
    """`model` has one release, with its size in bytes and its verdict; `limits` are None where it cannot be planned."""

    request_id: int
    model: HubModel
    num_files: int
    limits: WishLimits | None = None
    download_bytes: int = 0  # 0 for a model that is here
    caution: str = ""  # a sentence on what the plan rests on, where it is not the model's own headers


@dataclass(frozen=True, slots=True)
class Card:
    """Markdown without HTML and pictures; cut off where it is very long, empty where there is none."""

    request_id: int
    repo: str
    text: str


@dataclass(frozen=True, slots=True)
class MachineFacts:
    request_id: int
    machine: Machine
    uses_graphics: bool = False  # whether this version computes on graphics cards


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Measured GB/s; nothing where `unknown` says why not ("this computer has not been measured yet")."""

    request_id: int
    gbps: dict[Link, float] = field(default_factory=dict)
    kernels: dict[str, float] = field(default_factory=dict)  # by weight format: experts of one token, computed on
    drive: str = ""  # device whose rate that of the disk is
    seconds: float = 0.0  # since 1970, when it was measured
    unknown: str = ""


Message = (
    ListModels | Load | Generate | Cancel | Hello | Models | Progress | Loaded | Started | Text | Meter | Finished | Failed
    | ListDownloads | AddDownload | EditDownload | LimitDownloads | RunDownloads | AddFolder | ForgetFolder | RemoveModel
    | MoveModel | VerifyModel | Downloads | DownloadProgress | Removed | ListCatalogue | SearchHub | PlanFor | ReadCard
    | HubModels | RepoPlan | Card | ProbeMachine | MachineFacts | ReadRates | MeasureMachine | MachineRates
)  # fmt: skip
_TYPES: dict[str, type] = {cls.__name__: cls for cls in typing.get_args(Message)}


def encode(message: Message) -> str:
    """One line without its newline."""
    return json.dumps({"type": type(message).__name__, **dataclasses.asdict(message)}, ensure_ascii=True, allow_nan=False)


def decode(line: str | bytes) -> Message:
    """The message in a line. Raises `ProtocolError` for anything else."""
    try:
        fields = json.loads(line)
        cls = _TYPES[fields.pop("type")]
        return typing.cast(Message, _build(cls, fields))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ProtocolError(f"not a message of protocol {PROTOCOL_VERSION}: {line[:200]!r}") from error


def request_id_of(line: str | bytes) -> int | None:
    """That of a request which cannot be decoded; None where it has none."""
    try:
        found = json.loads(line)["request_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if type(found) is int else None


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(hint: Any, value: Any) -> Any:
    """`value` from JSON as the annotated type `hint`. Raises TypeError or ValueError where it does not fit."""
    if dataclasses.is_dataclass(hint):
        hints = _hints(typing.cast(type, hint))
        return typing.cast(Any, hint)(**{name: _build(hints[name], item) for name, item in value.items()})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _build(next(arg for arg in args if arg is not types.NoneType), value)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{value!r} is not a list")
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_build(args[0], item) for item in value)
        return tuple(_build(arg, item) for arg, item in zip(args, value, strict=True))
    if origin is dict:
        return {_build(args[0], key): _build(args[1], item) for key, item in value.items()}
    if issubclass(hint, StrEnum):
        return hint(value)
    if hint is float and isinstance(value, int):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} is not {hint.__name__}")
    return value
