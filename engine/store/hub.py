"""What the Hub says of a repository: files with sizes and checksums, licence, who may have it. Asks through HfApi."""

import json
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import httpx2
from huggingface_hub import HfApi, constants, get_token
from huggingface_hub.errors import (
    BadRequestError,
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from engine.errors import EngineError
from engine.protocol import Gate
from engine.store.files import INDEX, RemoteFile, Repository, choose_files, has_whole_set
from engine.store.web import Access, Line, StoppedError, TransientError, read_piece, refusal, wait_seconds_of
from engine.units import MB, format_bytes

_T = TypeVar("_T")
_TIMEOUT_SECONDS = 30.0
_LARGEST_INDEX = 100 * MB


def default_access(token: str | None = None) -> Access:
    """The Hub or the mirror in HF_ENDPOINT; `token`, else HF_TOKEN, else what `hf auth login` left."""
    return Access(constants.ENDPOINT, token or get_token())


def check_repo_name(repo: str) -> str:
    """The name without a pasted address around it. Raises `EngineError` for one that can be no repository."""
    name = repo.strip().removeprefix("https://huggingface.co/").removeprefix("hf://").strip("/")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise _no_name(repo) from error
    if name.count("/") != 1:
        raise _no_name(repo)
    return name


def check_revision(revision: str) -> str:
    """Raises `EngineError` for what git allows as no name."""
    if not re.fullmatch(r"[\w][\w./-]{0,200}", revision) or ".." in revision:
        raise EngineError("hub.revision", f"{revision!r} is no revision.", "Write a branch, a tag or a commit.")
    return revision


def _no_name(repo: str) -> EngineError:
    return EngineError(
        "hub.name", f"{repo!r} is no name of a model on the Hub.", "Write maker/model, as in Qwen/Qwen3-30B-A3B."
    )


def find_repository(
    line: Line,
    repo: str,
    revision: str,
    is_stopped: Callable[[], bool] = lambda: False,
    most_index_bytes: int = _LARGEST_INDEX,
) -> Repository:
    """Ask the Hub. Raises `EngineError` or `StoppedError`; waits out short trouble.

    An index of more than `most_index_bytes` is not read where the weight files are a numbered set without a gap.
    """
    api = HfApi(line.access.endpoint, token=line.access.token or False)

    def ask() -> Any:
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS)
        if info.gated:
            api.auth_check(repo)
        return info

    info = patiently(ask, line, repo, is_stopped)
    listed = {item.rfilename: item for item in info.siblings or ()}
    indexed = None
    if INDEX in listed and ((listed[INDEX].size or 0) <= most_index_bytes or not has_whole_set(listed)):
        index, pinned = _remote_file(repo, listed[INDEX]), Repository(info.id, str(info.sha), (), "")
        url = pinned.url(line.access.endpoint, index)
        indexed = _weight_files(repo, patiently(lambda: _bytes_of(line, url, index), line, repo, is_stopped))
    files = tuple(_remote_file(repo, listed[name]) for name in choose_files(repo, listed, indexed))
    return Repository(info.id, str(info.sha), files, licence_of(info), gate_of(info))


def licence_of(info: Any) -> str:
    """As the card names it: 'apache-2.0', or the name that goes with 'other'."""
    card = info.card_data or {}
    named = card.get("license_name") if card.get("license") == "other" else None
    return str(named or card.get("license") or "")


def gate_of(info: Any) -> Gate:
    return {"auto": Gate.TERMS, "manual": Gate.REVIEW}.get(str(info.gated), Gate.OPEN)


def _remote_file(repo: str, item: Any) -> RemoteFile:
    if item.size is None:
        text = f"The server does not say how large {item.rfilename} of {repo} is."
        raise EngineError("hub.no_size", text, "It may be a mirror that lacks this: unset HF_ENDPOINT and try again.")
    git = f"git-sha1:{item.blob_id}" if item.blob_id else ""
    return RemoteFile(item.rfilename, int(item.size), f"sha256:{item.lfs.sha256}" if item.lfs is not None else git)


def _bytes_of(line: Line, url: str, file: RemoteFile) -> bytes:
    """A whole small file into memory."""
    if file.size > _LARGEST_INDEX:
        raise EngineError("hub.bad_index", f"{file.name} has {format_bytes(file.size)}.", "Choose another repository.")
    return read_piece(line, url, file.size, 0, file.size)


def _weight_files(repo: str, index: bytes) -> set[str]:
    try:
        names = set(json.loads(index)["weight_map"].values())
        if not all(isinstance(name, str) for name in names):
            raise TypeError("a file without a name")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError("hub.bad_index", f"{INDEX} of {repo} cannot be read.", "Choose another repository.") from error
    return names


def patiently(ask: Callable[[], _T], line: Line, repo: str, is_stopped: Callable[[], bool]) -> _T:
    """What `ask` gives, waiting out short trouble. Raises `EngineError` or `StoppedError`."""
    patience, reason = line.patience, ""
    for failures in range(1, patience.retries + 2):
        wait = patience.wait_seconds(failures)
        try:
            return ask()
        except OfflineModeIsEnabled as error:
            raise EngineError("hub.offline", "HF_HUB_OFFLINE forbids to ask the Hub.", "Unset it and try again.") from error
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status != 429 and status < 500:
                raise _refused(error, status, line.access, repo) from error
            reason = f"it has had too many requests from here ({status})" if status == 429 else f"it is in trouble ({status})"
            wait = max(wait, wait_seconds_of(error.response.headers.get("Retry-After", "")))
        except TransientError as error:
            reason, wait = error.reason, max(wait, error.wait_seconds)
        except (httpx2.TransportError, ValueError) as error:  # ValueError: a web page where JSON belongs
            reason = _why(error)
        if failures <= patience.retries:
            line.tell(f"The Hub gives no answer, because {reason}; it is asked again in {wait:.0f} s.")
        again_at = time.monotonic() + wait
        while failures <= patience.retries and time.monotonic() < again_at:
            if is_stopped():
                raise StoppedError
            time.sleep(min(0.1, wait))
    text = f"{line.access.endpoint} gave no answer about {repo} in {patience.retries + 1} attempts: {reason}."
    raise EngineError("hub.unreachable", text, "Check the connection and try again.")


def _refused(error: HfHubHTTPError, status: int, access: Access, repo: str) -> EngineError:
    codes = {GatedRepoError: "GatedRepo", RevisionNotFoundError: "RevisionNotFound", RepositoryNotFoundError: "RepoNotFound"}
    code = next((code for kind, code in codes.items() if isinstance(error, kind)), "")
    if isinstance(error, DisabledRepoError):
        return EngineError("hub.disabled", f"The Hub has closed {repo}.", "Choose another repository.")
    if isinstance(error, BadRequestError):
        return _no_name(repo)
    return refusal(status, code, bool(access.token), f"/{repo}")


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it did not answer in time"
    if isinstance(error, httpx2.ConnectError):
        return "it cannot be reached, perhaps because this computer is not online"
    if isinstance(error, ValueError):
        return "a web page came in place of its answer, from a proxy or a sign-in page"
    return f"the connection broke ({type(error).__name__})"
