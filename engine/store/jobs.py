"""The queue of downloads in a file: it survives a restart, a crash and an update, and any process may read and change it.

A job counts as running while somebody holds its lock, so that a process that was killed leaves nothing to clean up.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from engine.errors import EngineError
from engine.protocol import DownloadAction, DownloadJob, DownloadState
from engine.store.hub import check_repo_name, check_revision
from engine.store.state_file import StateFile
from engine.store.target import check_folder

_REFUSED = (
    "download.no_space",
    "download.taken",
    "hub.no_revision",
    "store.drive_root",
    "store.not_a_folder",
    "store.read_only",
)
_STOPPED = (DownloadState.PAUSED, DownloadState.FAILED, DownloadState.DONE)


class Jobs:
    def __init__(self, data: Path) -> None:
        self._file = StateFile(data / "downloads.json")
        self._locks = data / "downloads"

    def all(self) -> tuple[DownloadJob, ...]:
        """In the order of the queue; one that is being worked on by any process is RUNNING."""
        return tuple(self._seen(job) for job in map(_job, self._file.read().get("jobs", [])))

    def find(self, repo: str) -> DownloadJob | None:
        return next((job for job in map(_job, self._file.read().get("jobs", [])) if _is(job, repo)), None)

    def is_wanted(self, repo: str) -> bool:
        job = self.find(repo)
        return job is not None and job.state is DownloadState.WAITING

    def add(self, repo: str, revision: str, folder: str) -> DownloadJob:
        """One job per repository: one that is there goes on with the place and the revision that it began with.

        One whose place or revision was refused takes those that are asked for now. One that is done begins anew, which
        costs nothing where nothing has changed. Raises `EngineError`.
        """
        repo, revision = check_repo_name(repo), check_revision(revision)
        folder = str(check_folder(Path(folder))) if folder else ""
        with self._edited() as jobs:
            found = next((job for job in jobs if _is(job, repo)), None)
            is_refused = found is not None and found.code in _REFUSED and not found.done_bytes
            if found is None or found.state is DownloadState.DONE or is_refused:
                job = DownloadJob(repo, revision, folder, DownloadState.WAITING)
            else:
                job = replace(found, state=DownloadState.WAITING, code="", text="", hint="")
            if found is None:
                jobs.append(job)
            else:
                jobs[jobs.index(found)] = job
        return job

    def edit(self, repo: str, action: DownloadAction, position: int = 0) -> None:
        """Raises `EngineError` where there is no such job. The process that works on it notices within half a second."""
        with self._edited() as jobs:
            job = next((job for job in jobs if _is(job, repo)), None)
            if job is None:
                raise EngineError("download.no_job", f"{repo} is not among the downloads.", f"Start it: stoker pull {repo}")
            index = jobs.index(job)
            match action:
                case DownloadAction.PAUSE if job.state is not DownloadState.DONE:
                    jobs[index] = replace(job, state=DownloadState.PAUSED, code="", text="", hint="")
                case DownloadAction.RESUME if job.state in _STOPPED:
                    jobs[index] = replace(job, state=DownloadState.WAITING, code="", text="", hint="")
                case DownloadAction.MOVE:
                    jobs.insert(max(0, min(position, len(jobs) - 1)), jobs.pop(index))
                case DownloadAction.CANCEL | DownloadAction.DELETE:
                    del jobs[index]

    def update(self, repo: str, change: Callable[[DownloadJob], DownloadJob]) -> None:
        """Nothing happens where the job was cancelled meanwhile."""
        with self._edited() as jobs:
            jobs[:] = [change(job) if _is(job, repo) else job for job in jobs]

    def lock(self, repo: str, seconds: float) -> FileLock | None:
        """Held until released or the process ends; None when another holds it still."""
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock_path(repo), timeout=seconds, is_singleton=False)
            lock.acquire()
        except Timeout:
            return None
        except OSError as error:
            text = f"{self._locks} cannot be used: {error.strerror or error}."
            raise EngineError("store.state", text, "Check the drive: is it full, or write-protected?") from error
        return lock

    @contextmanager
    def held(self, repo: str, seconds: float = 2.0) -> Iterator[None]:
        """While nobody else may work on that repository. Raises `EngineError` where somebody does."""
        lock = self.lock(repo, seconds)
        if lock is None:
            text = f"{repo} is being downloaded at this moment."
            raise EngineError("download.busy", text, "Pause or cancel the download first.")
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, repo: str) -> bool:
        if not self._lock_path(repo).exists():
            return False
        lock = self.lock(repo, 0)
        if lock is not None:
            lock.release()
        return lock is None

    def _lock_path(self, repo: str) -> Path:
        return self._locks / f"{repo.lower().replace('/', '--')}.lock"

    def _seen(self, job: DownloadJob) -> DownloadJob:
        is_running = job.state is DownloadState.WAITING and self.is_locked(job.repo)
        return replace(job, state=DownloadState.RUNNING) if is_running else job

    @contextmanager
    def _edited(self) -> Iterator[list[DownloadJob]]:
        with self._file.edit() as value:
            jobs = [_job(item) for item in value.get("jobs", [])]
            yield jobs
            value["jobs"] = [asdict(job) for job in jobs]


def _is(job: DownloadJob, repo: str) -> bool:
    return job.repo.lower() == repo.lower()


def _job(item: dict[str, Any]) -> DownloadJob:
    return DownloadJob(**item | {"state": DownloadState(item["state"])})
