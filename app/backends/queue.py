"""The queue of downloads as the window sees it: its jobs, how the running one fares, and that somebody works on it.

Goes on by itself after the child died, a few times; tells once of each job that ended. Knows no page.
"""

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import QObject, QTimer, Signal

from app.backends.store import Store
from app.backends.token import TokenStore
from app.core.settings import Settings
from engine.protocol import (
    AddDownload,
    DownloadAction,
    DownloadJob,
    DownloadProgress,
    Downloads,
    DownloadState,
    EditDownload,
    Failed,
    LimitDownloads,
    ListDownloads,
    RunDownloads,
)

_AGAIN_MS = 2000
_MOST_DEATHS = 3  # in a row, without a byte between them
_BYTES_PER_MB = 1_000_000


class DownloadQueue(QObject):
    changed = Signal()  # jobs: another number, order or state
    progressed = Signal(str)  # repo
    ended = Signal(object)  # DownloadJob that is done or has failed just now
    problem = Signal(str)  # a sentence

    def __init__(self, store: Store, settings: Settings, token: TokenStore, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store, self._settings, self._token = store, settings, token
        self.jobs: tuple[DownloadJob, ...] = ()
        self._progress: dict[str, DownloadProgress] = {}
        self._run_id = 0
        self._deaths = 0
        self._again = QTimer(self, singleShot=True, interval=_AGAIN_MS)
        self._again.timeout.connect(self._run)
        store.downloads.connect(self._told)
        store.progressed.connect(self._advance)
        settings.watch(self._setting_changed)

    def begin(self) -> None:
        """When the window opens: what was under way goes on, unless the person wants to be asked."""

        def go_on(_: Downloads) -> None:
            if self._settings.resume_downloads:
                self._run()

        self._store.ask(ListDownloads, done=go_on, failed=self._failed)

    def job(self, repo: str) -> DownloadJob | None:
        return next((job for job in self.jobs if job.repo.lower() == repo.lower()), None)

    def progress(self, repo: str) -> DownloadProgress | None:
        """Of the running job."""
        return self._progress.get(repo)

    @property
    def num_open(self) -> int:
        return sum(job.state is not DownloadState.DONE for job in self.jobs)

    @property
    def is_running(self) -> bool:
        return bool(self._run_id)

    def add(self, repo: str, failed: Callable[[Failed], object] | None = None) -> None:
        folder = self._settings.download_folder
        self._store.ask(AddDownload, repo, "main", folder, done=lambda _: self._run(), failed=failed or self._failed)

    def pause(self, repo: str) -> None:
        self._edit(repo, DownloadAction.PAUSE)

    def resume(self, repo: str) -> None:
        self._deaths = 0
        self._store.ask(EditDownload, repo, DownloadAction.RESUME, done=lambda _: self._run(), failed=self._failed)

    def move(self, repo: str, position: int) -> None:
        self._edit(repo, DownloadAction.MOVE, position)

    def cancel(self, repo: str, *, delete: bool) -> None:
        """Without `delete` what has arrived is kept, and a later download goes on from it."""
        self._edit(repo, DownloadAction.DELETE if delete else DownloadAction.CANCEL)

    def _edit(self, repo: str, action: DownloadAction, position: int = 0) -> None:
        self._store.ask(EditDownload, repo, action, position, failed=self._failed)

    def _run(self) -> None:
        is_wanted = any(job.state in (DownloadState.WAITING, DownloadState.RUNNING) for job in self.jobs)
        if self._run_id or not is_wanted:
            return
        limit = self._settings.download_limit * _BYTES_PER_MB
        self._run_id = self._store.ask(RunDownloads, self._token.value, limit, done=self._ran, failed=self._run_failed)

    def _ran(self, _: Downloads) -> None:
        self._run_id = 0
        if any(job.state is DownloadState.WAITING for job in self.jobs):  # put there as the last one ended
            self._again.start()

    def _run_failed(self, failed: Failed) -> None:
        self._run_id = 0
        self._deaths += 1
        if failed.code == "engine.stopped":
            return
        if failed.code == "engine.died" and self._deaths < _MOST_DEATHS:
            self._again.start()
        else:
            self._progress.clear()
            self.jobs = tuple(replace(job, state=_at_rest(job.state)) for job in self.jobs)
            self.changed.emit()
            self._failed(failed)

    def _failed(self, failed: Failed) -> None:
        self.problem.emit(f"{failed.text} {failed.hint}".strip())

    def _told(self, told: Downloads) -> None:
        before = {job.repo: job.state for job in self.jobs}
        self._set_jobs(told.jobs)
        for job in told.jobs:
            self._tell_end(before.get(job.repo), job)

    def _advance(self, progress: DownloadProgress) -> None:
        job = progress.job
        before = self.job(job.repo)
        if before is None:
            return
        self._deaths = 0 if job.done_bytes > before.done_bytes else self._deaths
        self._progress[job.repo] = progress
        jobs = tuple(job if known.repo == job.repo else known for known in self.jobs)
        if before.state is job.state:
            self.jobs = jobs
            self.progressed.emit(job.repo)
        else:
            self._set_jobs(jobs)
            self._tell_end(before.state, job)

    def _set_jobs(self, jobs: tuple[DownloadJob, ...]) -> None:
        self.jobs = jobs
        running = {job.repo for job in jobs if job.state is DownloadState.RUNNING}
        self._progress = {repo: progress for repo, progress in self._progress.items() if repo in running}
        self.changed.emit()

    def _tell_end(self, before: DownloadState | None, job: DownloadJob) -> None:
        was_open = before in (DownloadState.WAITING, DownloadState.RUNNING)
        if was_open and job.state in (DownloadState.DONE, DownloadState.FAILED):
            self.ended.emit(job)

    def _setting_changed(self, key: str) -> None:
        if key == "download_limit" and self._run_id:
            self._store.ask(LimitDownloads, self._settings.download_limit * _BYTES_PER_MB, failed=self._failed)


def _at_rest(state: DownloadState) -> DownloadState:
    return DownloadState.WAITING if state is DownloadState.RUNNING else state
