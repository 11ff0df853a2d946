"""Works on the jobs of the queue: one process per job, however many ask for it; the others look on and take over if it dies."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import EngineError
from engine.protocol import DownloadJob, DownloadProgress, DownloadState
from engine.store.download import Download, Order, Report
from engine.store.jobs import Jobs
from engine.store.patience import Rate
from engine.store.records import Records
from engine.store.web import Line, StoppedError

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 0.5  # how soon a change of the queue by another process is noticed
_REPORT_SECONDS = 0.2
_SAVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Bench:
    """All that a job needs. `show` is called on the caller's thread: five times a second at most, and at changes of state."""

    data: Path  # Stoker's own folder
    line: Line
    is_stopped: Callable[[], bool]
    show: Callable[[DownloadProgress], None]
    request_id: int = 0


def run_queue(bench: Bench) -> None:
    """Every waiting job in order, until none is left or it is told to stop."""
    jobs = Jobs(bench.data)
    while not bench.is_stopped():
        job = next((job for job in jobs.all() if job.state in (DownloadState.WAITING, DownloadState.RUNNING)), None)
        if job is None:
            return
        run_job(bench, job.repo)


def run_job(bench: Bench, repo: str) -> DownloadJob | None:
    """One job to its end; how it stands then, None where it was cancelled. What went wrong is told in the job."""
    jobs = Jobs(bench.data)
    while (lock := jobs.lock(repo, _LOOK_SECONDS)) is None:
        job = jobs.find(repo)
        if job is None or bench.is_stopped():
            return job
        looked_on = replace(job, state=DownloadState.RUNNING, text="Another window or terminal is bringing it.")
        bench.show(DownloadProgress(bench.request_id, looked_on, "", 0, None, None))
    try:
        job = jobs.find(repo)
        if job is not None and job.state is DownloadState.WAITING:
            _Job(bench, jobs, job).work()
        return jobs.find(repo)
    finally:
        lock.release()


class _Job:
    """A job at work: `Download` with its reports passed on, at a bounded rate, to the screen and the queue's file."""

    def __init__(self, bench: Bench, jobs: Jobs, job: DownloadJob) -> None:
        self._bench, self._jobs, self._job = bench, jobs, replace(job, state=DownloadState.RUNNING)
        self._rate = Rate()
        self._report = Report(job.commit, job.total_bytes, job.done_bytes)
        self._is_wanted = True
        self._looked_at = self._shown_at = self._saved_at = 0.0

    def work(self) -> None:
        job = self._job
        self._show()
        order = Order(job.repo, job.revision, job.folder, job.commit)
        download = Download(order, self._bench.line, Records(self._bench.data), self._must_stop, self._reported)
        state, code, text, hint = DownloadState.DONE, "", "", ""
        try:
            download.run()
        except StoppedError:  # by an edit of the queue, whose state it keeps, or by the end of this process
            found = self._jobs.find(job.repo)
            state = found.state if found is not None else DownloadState.PAUSED
        except EngineError as error:
            _log.info("%s: %s", job.repo, error)
            state, code, text, hint = DownloadState.FAILED, error.code, error.text, error.hint
        self._job = replace(self._job, state=state, code=code, text=text, hint=hint)
        self._save()
        self._show()

    def _must_stop(self) -> bool:
        """Called often, from the thread that works."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._is_wanted = self._jobs.is_wanted(self._job.repo)
        return not self._is_wanted or self._bench.is_stopped()

    def _reported(self, report: Report) -> None:
        now = time.monotonic()
        if not report.total_bytes:  # what an earlier run knew of it stays
            self._job = replace(self._job, text=report.trouble)
            self._show()
            return
        self._rate.add(now, report.done_bytes)
        has_news = (report.trouble, report.file) != (self._report.trouble, self._report.file)
        is_pinned = bool(self._report.commit)
        self._report = report
        self._job = replace(
            self._job, commit=report.commit, total_bytes=report.total_bytes, done_bytes=report.done_bytes, text=report.trouble
        )
        if not is_pinned or now - self._saved_at >= _SAVE_SECONDS:
            self._saved_at = now
            self._save()
        if has_news or now - self._shown_at >= _REPORT_SECONDS:
            self._shown_at = now
            self._show()

    def _save(self) -> None:
        """How far it is, and how it ended; never over what a person has changed meanwhile."""
        mine = self._job

        def change(job: DownloadJob) -> DownloadJob:
            has_ended = mine.state in (DownloadState.FAILED, DownloadState.DONE)
            return replace(mine, state=mine.state if has_ended and job.state is DownloadState.WAITING else job.state)

        try:
            self._jobs.update(mine.repo, change)
        except EngineError as error:  # a full drive: the parts' own logs know how far it is
            _log.warning("%s", error)

    def _show(self) -> None:
        job, report = self._job, self._report
        rate = self._rate.bytes_per_second(time.monotonic()) if job.state is DownloadState.RUNNING else None
        left = (job.total_bytes - job.done_bytes) / rate if rate else None
        self._bench.show(DownloadProgress(self._bench.request_id, job, report.file, report.verified_bytes, rate, left))
