"""The wire between window and engine: one JSON object per line, each a frozen dataclass tagged with its class name.

All that `app/` may import from `engine/`. Requests travel on the child's stdin, events on its stdout. Every request is answered
by exactly one of Models, Loaded, Finished, Downloads, Removed, HubModels, RepoPlan, Card, MachineFacts, MachineRates or Failed.
"""

import dataclasses
import json
import types
import typing
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from engine.config import NO_REASONING, KvType, Reasoning, Sampling, Wishes
from engine.hardware.machine import Cpu, DriveFacts, DriveKind, Gpu, GpuKind, Machine, PcieLink
from engine.meter import Link, LinkUse, Origin, Phase, Traffic
from engine.protocol_chat import (
    ChatMessage,
    Finished,
    Generate,
    Load,
    Loaded,
    Meter,
    ReasoningChoices,
    SpanKind,
    Started,
    StopReason,
    Text,
)
from engine.protocol_hub import (
    Card,
    Gate,
    HubModel,
    HubModels,
    HubSort,
    ListCatalogue,
    PlanFor,
    ReadCard,
    Release,
    RepoPlan,
    SearchHub,
)
from engine.protocol_machine import MachineFacts, MachineRates, MeasureMachine, ProbeMachine, ReadRates
from engine.protocol_plan import Change, FirstToken, Fit, Gain, Plan, Tier, Verdict, WishLimits
from engine.protocol_store import (
    AddDownload,
    AddFolder,
    DownloadAction,
    DownloadJob,
    DownloadProgress,
    Downloads,
    DownloadState,
    EditDownload,
    ForgetFolder,
    LimitDownloads,
    ListDownloads,
    ModelEntry,
    Models,
    ModelState,
    MoveModel,
    Removed,
    RemoveModel,
    RunDownloads,
    VerifyModel,
)

__all__ = [
    "NO_REASONING", "PROTOCOL_VERSION", "AddDownload", "AddFolder", "Cancel", "Card", "Change", "ChatMessage", "Cpu",
    "DownloadAction", "DownloadJob", "DownloadProgress", "DownloadState", "Downloads", "DriveFacts", "DriveKind",
    "EditDownload", "Failed", "Finished", "FirstToken", "Fit", "ForgetFolder", "Gain", "Gate", "Generate", "Gpu", "GpuKind",
    "Hello", "HubModel", "HubModels", "HubSort", "KvType", "LimitDownloads", "Link", "LinkUse", "ListCatalogue",
    "ListDownloads", "ListModels", "Load", "Loaded", "Machine", "MachineFacts", "MachineRates", "MeasureMachine", "Message",
    "Meter", "ModelEntry", "ModelState", "Models", "MoveModel", "Origin", "PcieLink", "Phase", "Plan", "PlanFor",
    "ProbeMachine", "Progress", "ProtocolError", "ReadCard", "ReadRates", "Reasoning", "ReasoningChoices", "Release",
    "RemoveModel", "Removed", "RepoPlan", "RunDownloads", "Sampling", "SearchHub", "SpanKind", "Started", "StopReason",
    "Text", "Tier", "Traffic", "Verdict", "VerifyModel", "WishLimits", "Wishes", "decode", "encode", "request_id_of",
]  # fmt: skip  # fmt: skip

PROTOCOL_VERSION = 1


class ProtocolError(Exception):
    """A line that is no message of this version."""


@dataclass(frozen=True, slots=True)
class ListModels:
    request_id: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop `request_id` within one token; its `Finished` follows with `StopReason.CANCELLED`."""

    request_id: int


@dataclass(frozen=True, slots=True)
class Hello:
    """First line of every child."""

    protocol_version: int
    stoker_version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Progress:
    """A long step of a request; `done` of `total` bytes or parts, `total` 0 when unknown."""

    request_id: int
    stage: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request will not be answered otherwise. `text` and `hint` are for the person."""

    request_id: int
    code: str
    text: str
    hint: str = ""


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
