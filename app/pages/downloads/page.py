"""The downloads page. What runs and why not is the queue's business; here are rows, words and buttons."""

from collections.abc import Callable

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.core.download_words import SIGN_IN_CODES, job_words
from app.core.figures import format_bytes, format_count
from app.core.problem import Action
from app.item_models.rows import RowsModel
from app.pages.services import Services
from app.widgets import ask
from app.widgets.column import scrolled
from app.widgets.empty_state import EmptyState
from app.widgets.error_banner import ErrorBanner
from app.widgets.progress_row import JobView, ProgressRow
from app.widgets.row_list import RowList
from app.widgets.text_label import text_label
from app.widgets.token_dialog import TokenDialog
from engine.protocol import DownloadJob, DownloadState

_COLUMN_PX = 1224
_OPEN = (DownloadState.RUNNING, DownloadState.WAITING)


class DownloadsPage(QWidget):
    page_wanted = Signal(str)
    opening_wanted = Signal(str, str)

    def __init__(
        self, services: Services, parent: QWidget | None = None, *, confirm: Callable[[QWidget, str, str], bool] = ask.confirm
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "page")
        self._services, self._queue, self._confirm = services, services.downloads, confirm
        theme = services.theme
        self._banner = ErrorBanner(theme, self)
        self._notice = ErrorBanner(theme, self, is_quiet=True)
        self._jobs, self._done = RowsModel(self), RowsModel(self)
        self._list = RowList(self._jobs, lambda parent: ProgressRow(theme, self._view, parent), self)
        self._done_list = RowList(self._done, lambda parent: ProgressRow(theme, self._view, parent), self)
        self._summary = text_label(kind="muted")
        self._done_title = text_label(kind="heading")
        self._done_title.setText("Finished")
        self._empty = EmptyState(self)
        self._empty.show_words(
            "Nothing is being downloaded",
            "What you get on the models page comes here, goes on after a restart, and is compared with its checksums.",
            (("Browse models", lambda: self.page_wanted.emit("models")),),
        )
        self._lay_out()
        self._queue.changed.connect(self._show)
        self._queue.progressed.connect(self._advanced)
        self._queue.problem.connect(self._banner.show_problem)
        theme.changed.connect(self._repaint)
        self._show()

    def activate(self) -> None:
        """Focus goes to the first thing that can be done."""
        if self._list.rows:
            self._list.rows[0].setFocus()
        self._show()

    # What is shown

    def _show(self) -> None:
        jobs = self._queue.jobs
        self._jobs.set_items([job for job in jobs if job.state is not DownloadState.DONE])
        self._done.set_items([job for job in jobs if job.state is DownloadState.DONE])
        has_open, has_done = bool(self._jobs.items), bool(self._done.items)
        self._empty.setVisible(not has_open)
        self._done_title.setVisible(has_done)
        self._summary.setText(self._summary_text())

    def _summary_text(self) -> str:
        jobs = self._jobs.items
        left = sum(job.total_bytes - job.done_bytes for job in jobs)
        stopped = sum(job.state is DownloadState.FAILED for job in jobs)
        counts = [
            format_count(len(jobs), "download"),
            f"{format_bytes(left)} to go" if left else "",
            f"{stopped} stopped" if stopped else "",
        ]
        place = self._services.settings.download_folder or "the Hugging Face cache"
        limit = self._services.settings.download_limit
        parts = [
            ", ".join(filter(None, counts)) if jobs else "",
            f"into {place}" if jobs else f"Downloads go into {place}",
        ]
        return " · ".join(filter(None, [*parts, f"at most {limit} MB/s" if limit else ""]))

    def _advanced(self, repo: str) -> None:
        self._show()
        row = next((number for number, job in enumerate(self._jobs.items) if job.repo == repo), -1)
        if row >= 0:
            self._jobs.touch(row)

    def _repaint(self) -> None:
        self._list.refill()
        self._done_list.refill()

    def _view(self, job: DownloadJob) -> JobView:
        return JobView(job_words(job, self._queue.progress(job.repo)), self._actions(job))

    def _actions(self, job: DownloadJob) -> tuple[Action, ...]:
        queue, repo = self._queue, job.repo
        if job.state is DownloadState.DONE:
            return ("Run", lambda: self._run(repo)), ("Take it off this list", lambda: queue.cancel(repo, delete=False))
        actions: list[Action] = [
            ("Pause", lambda: queue.pause(repo)) if job.state in _OPEN else ("Resume", lambda: queue.resume(repo))
        ]
        if job.state is DownloadState.FAILED and job.code in SIGN_IN_CODES:
            actions.insert(0, ("Sign in…", lambda: self._sign_in(repo)))
        place = next((number for number, other in enumerate(queue.jobs) if other.repo == repo), 0)
        if place > 0:
            actions.append(("Move up", lambda: queue.move(repo, place - 1)))
            actions.append(("Move to the top", lambda: queue.move(repo, 0)))
        if place < len(queue.jobs) - 1:
            actions.append(("Move down", lambda: queue.move(repo, place + 1)))
        actions.append(("Cancel, keep what has arrived", lambda: queue.cancel(repo, delete=False)))
        actions.append(("Cancel and delete what has arrived…", lambda: self._delete(job)))
        return tuple(actions)

    # What the person does

    def _run(self, repo: str) -> None:
        self.opening_wanted.emit("chat", repo)

    def _delete(self, job: DownloadJob) -> None:
        here = self._queue.job(job.repo) or job
        question = f"Delete the {format_bytes(here.done_bytes)} of {job.repo} that have arrived?"
        if not here.done_bytes or self._confirm(self, question, "Delete"):
            self._queue.cancel(job.repo, delete=True)

    def _sign_in(self, repo: str) -> None:
        token = self._services.token
        dialog = TokenDialog(lambda value, keep: token.save(value, keep=keep), self, repo=repo, has_token=bool(token.value))
        if dialog.exec():
            self._notice.show_problem(dialog.said)
            self._queue.resume(repo)

    def _lay_out(self) -> None:
        column = QVBoxLayout()
        column.setContentsMargins(32, 24, 32, 24)
        column.setSpacing(6)
        column.addWidget(text_label("Downloads", "page-title"))
        column.addWidget(self._summary)
        column.addSpacing(12)
        column.addWidget(self._list)
        column.addWidget(self._empty)
        column.addSpacing(16)
        column.addWidget(self._done_title)
        column.addWidget(self._done_list)
        column.addStretch(1)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self._banner)
        outer.addWidget(self._notice)
        outer.addWidget(scrolled(column, _COLUMN_PX, self), 1)
