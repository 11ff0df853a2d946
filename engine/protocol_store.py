"""Messages of `engine.protocol` about models on this computer and the queue of downloads.

A download child (`python -m engine download`) serves them without loading a model.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.protocol_plan import Verdict


class ModelState(StrEnum):
    UNVERIFIED = "unverified"  # it was there before: nobody compared its checksums
    ARRIVING = "arriving"  # on its way, or left half way
    WHOLE = "whole"  # every checksum was right
    DAMAGED = "damaged"  # a checksum is wrong: its download again brings that file alone
    AWAY = "away"  # its drive is not connected


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
class Models:
    request_id: int
    models: tuple[ModelEntry, ...]
    folder: str  # where Stoker keeps models
    watched: tuple[str, ...] = ()  # every folder in which models were looked for


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
