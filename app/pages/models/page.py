"""The models page: builds its parts and joins them. What is known is the business of `Browser`, `Library` and the queue."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import Qt, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import QStackedLayout, QVBoxLayout, QWidget

from app.core.download_words import SIGN_IN_CODES, job_words
from app.core.problem import Action
from app.core.row import RowView
from app.core.verdicts import SORTS, formats_of, in_format, recommended, sort_models
from app.item_models.rows import RowsModel
from app.pages.models.browser import HUB_SORTS, Browser
from app.pages.models.details import Details
from app.pages.models.header import ModelsHeader
from app.pages.models.library import Library
from app.pages.models.rows import Deeds, Here, entry_row, model_row, release_row
from app.pages.services import Services
from app.widgets import ask
from app.widgets.column import scrolled
from app.widgets.empty_state import EmptyState
from app.widgets.error_banner import ErrorBanner
from app.widgets.model_row import ModelRow
from app.widgets.progress_row import JobView, ProgressRow
from app.widgets.row_list import RowList
from app.widgets.text_label import text_label
from app.widgets.token_dialog import TokenDialog
from engine.protocol import DownloadJob, DownloadState, Failed, HubModel, HubSort, ModelEntry, Release

_COLUMN_PX = 1224
_MOST_JOBS = 3  # shown below the models; the downloads page has all


@dataclass(frozen=True, slots=True)
class Asker:
    """What only a person can answer; tests answer in their stead."""

    folder: Callable[[QWidget, str], str]
    confirm: Callable[[QWidget, str, str], bool]


class ModelsPage(QWidget):
    page_wanted = Signal(str)
    opening_wanted = Signal(str, str)  # page, what to open there

    def __init__(
        self, services: Services, parent: QWidget | None = None, *, asker: Asker = Asker(ask.folder, ask.confirm)
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "page")
        self._services, self._asker = services, asker
        theme = services.theme
        self._browser = Browser(services.store, services.settings, services.token, self)
        self._library = Library(services.store, partial(asker.confirm, self), self)
        self._deeds = Deeds(
            run=self._run, get=self._get, details=self._open, downloads=lambda: self.page_wanted.emit("downloads"),
            look=self._library.look,
            verify=self._library.verify, move=self._move, remove=self._library.remove, stop=self._library.stop,
            show_folder=_show_folder, forget=self._forget,
        )  # fmt: skip
        self._header = ModelsHeader(self)
        self._banner = ErrorBanner(theme, self)
        self._notice = ErrorBanner(theme, self, is_quiet=True)
        self._rows, self._jobs = RowsModel(self), RowsModel(self)
        self._shares: dict[str, int] = {}  # percent that has arrived, by repository, as shown last
        self._list = RowList(self._rows, lambda parent: ModelRow(theme, self._open, parent), self)
        self._job_list = RowList(self._jobs, lambda parent: ProgressRow(theme, self._job_view, parent), self)
        self._empty = EmptyState(self)
        self._jobs_title = text_label(kind="heading")
        self._jobs_title.setText("Downloads")
        self._details = Details(theme, self)
        self._lay_out()
        self._connect()
        self.setFocusProxy(self._header.search)
        self._show()

    def activate(self) -> None:
        """Memory, drives and files may have changed since it was shown last."""
        self._browser.look()
        self._library.look()

    # What the person does

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._stack.currentWidget() is self._details:
            self._leave_details()
        else:
            super().keyPressEvent(event)

    def _search(self, text: str) -> None:
        self._header.set_view("all")
        self._leave_details()
        self._browser.only_supported = self._header.only_supported
        self._browser.search(text)

    def _leave_search(self) -> None:
        if self._browser.text or self._browser.problem or self._browser.found:
            self._browser.leave_search()

    def _clear_search(self) -> None:
        self._header.search.clear()
        self._leave_search()

    def _view_changed(self, view: str) -> None:
        if view == "all" and not self._browser.found and not self._browser.is_searching and self._header.search.text():
            self._search(self._header.search.text())
        self._show()

    def _order_changed(self) -> None:
        """The Hub sorts and filters what it has; the rest is sorted here."""
        browser, header = self._browser, self._header
        is_of_hub = header.view == "all" and self._is_of_hub()
        wanted = HubSort(header.sort) if header.sort in set(HubSort) else browser.sort
        if is_of_hub and (wanted is not browser.sort or header.only_supported != browser.only_supported):
            browser.sort, browser.only_supported = wanted, header.only_supported
            browser.search(browser.text)
        self._show()

    def _run(self, entry: ModelEntry) -> None:
        self.opening_wanted.emit("chat", entry.path)

    def _get(self, repo: str) -> None:
        self._banner.hide()
        self._services.downloads.add(repo)

    def _move(self, entry: ModelEntry) -> None:
        if folder := self._asker.folder(self, f"Move {entry.name} into"):
            self._library.move(entry, folder)

    def _forget(self, entry: ModelEntry) -> None:
        folder = self._library.chosen_folder_of(entry)
        if not folder:
            self._banner.show_problem(
                f"{entry.name} lies in Stoker's own folder or in the Hugging Face cache, which stay listed."
            )
        else:
            self._library.forget_folder(folder)

    def _add_folder(self) -> None:
        if folder := self._asker.folder(self, "Add a folder with models"):
            self._header.set_view("here")
            self._library.add_folder(folder)
            self._show()

    def _sign_in(self, repo: str = "") -> None:
        token = self._services.token
        dialog = TokenDialog(lambda value, keep: token.save(value, keep=keep), self, repo=repo, has_token=bool(token.value))
        if dialog.exec():
            self._notice.show_problem(dialog.said)
            self._browser.forget_failures()
            if self._stack.currentWidget() is self._details:
                self._browser.describe(self._details.repo)
            if (job := self._services.downloads.job(repo)) is not None and job.state is DownloadState.FAILED:
                self._services.downloads.resume(repo)
            self._show()

    def _open(self, key: str) -> None:
        """A model of the Hub by its repository, one on this computer by its path."""
        entry = self._library.entry(key)
        repo = entry.repo if entry is not None else key
        if not repo:
            return
        self._browser.describe(repo)
        self._show_details(repo)
        self._stack.setCurrentWidget(self._details)
        self._details.focus()

    def _leave_details(self) -> None:
        self._stack.setCurrentIndex(0)
        self._header.search.setFocus()

    # What is shown

    def _show(self) -> None:
        view = self._header.view
        self._header.set_count(len(self._library.models or ()))
        models = self._models(view)
        is_of_hub = view == "all" and self._is_of_hub()
        sorts = {sort.value: words for sort, words in HUB_SORTS.items()} if is_of_hub else SORTS
        self._header.set_orders(sorts, formats_of(models), can_filter=view != "here", has_hub=is_of_hub)
        if view == "here":
            rows = [self._entry_row(entry) for entry in self._library.models or ()]
        else:
            chosen = in_format(sort_models(models, self._header.sort), self._header.weight_format)
            rows = [model_row(model, self._here, self._failure(model), self._deeds) for model in chosen]
        self._rows.set_items(rows)
        if not rows:
            self._empty.show_words(*self._why_empty(view))
        self._empty.setVisible(not rows)
        self._header.set_note(self._note(view))
        self._show_jobs()
        if self._stack.currentWidget() is self._details:
            self._show_details(self._details.repo)

    def _is_of_hub(self) -> bool:
        browser = self._browser
        return bool(browser.text or browser.found or browser.is_searching or browser.problem)

    def _models(self, view: str) -> tuple[HubModel, ...]:
        if view == "recommended":
            return recommended(self._browser.catalogue)
        return self._browser.found if self._is_of_hub() else self._browser.catalogue

    def _entry_row(self, entry: ModelEntry) -> RowView:
        busy = self._library.busy
        job = self._services.downloads.job(entry.repo) if entry.repo else None
        return entry_row(
            entry, job, busy.get(entry.path), is_busy=entry.path in busy, now=time.time(), deeds=self._deeds
        )  # fmt: skip

    def _here(self, repo: str) -> Here:
        return Here(self._library.of_repo(repo), self._services.downloads.job(repo))

    def _failure(self, model: HubModel) -> Failed | None:
        plan = self._browser.plan(model.releases[0].repo)
        return plan if isinstance(plan, Failed) else None

    def _why_empty(self, view: str) -> tuple[str, str, tuple[Action, ...]]:
        """Title, text and what can be done."""
        browser = self._browser
        if view == "here":
            if self._library.models is None:
                return "Looking…", "", ()
            text = f"Get one, or add a folder that has some. Downloads go to {self._place()}."
            return "No models on this computer yet", text, (("Browse models", lambda: self._to_view("recommended")),)
        if view == "all" and self._is_of_hub():
            if browser.is_searching:
                return "Searching…", "", ()
            catalogue: Action = ("Show the catalogue", self._clear_search)
            if browser.problem is None:
                return "Nothing found", f"No model on the Hub fits “{browser.text}”.", (catalogue,)
            again: Action = ("Try again", lambda: browser.search(browser.text))
            return "The search did not succeed", f"{browser.problem.text} {browser.problem.hint}", (again, catalogue)
        if (problem := browser.catalogue_problem) is not None:
            return "The catalogue cannot be shown", f"{problem.text} {problem.hint}", (("Try again", browser.look),)
        if not browser.catalogue:
            return "Looking at this computer…", "", ()
        return "None of the catalogue runs here", "", (("See why", lambda: self._to_view("all")),)

    def _place(self) -> str:
        return self._services.settings.download_folder or "the Hugging Face cache"

    def _to_view(self, view: str) -> None:
        self._header.set_view(view)
        self._show()

    def _note(self, view: str) -> str:
        if view == "here":
            return "Found in Stoker's own folder, the Hugging Face cache and the folders that you added."
        if view == "all" and self._is_of_hub():
            return "From Hugging Face. A model is judged by its headers, before anything large is downloaded."
        return (
            f"Judged for this computer as it is now: {self._browser.ground}"
            if self._browser.ground
            else "Looking at this computer…"
        )

    def _show_details(self, repo: str) -> None:
        model = self._browser.model(repo)
        plan = self._browser.plan(repo)
        if model is None and not isinstance(plan, Failed) and plan is not None:
            model = plan.model
        if model is None:
            model = _unknown(repo)
        failure = plan if isinstance(plan, Failed) else None
        rows = tuple(release_row(item, self._here(item.repo), failure, self._deeds) for item in model.releases)
        self._details.show_model(repo, model, rows, self._browser.card(repo), failure)

    def _show_jobs(self) -> None:
        jobs = [job for job in self._services.downloads.jobs if job.state is not DownloadState.DONE][:_MOST_JOBS]
        self._jobs.set_items(jobs)
        self._jobs_title.setVisible(bool(jobs))

    def _advanced(self, repo: str) -> None:
        """A few times a second: the bar alone, and the rows where a percentage on a button has changed."""
        job = self._services.downloads.job(repo)
        share = 100 * job.done_bytes // max(job.total_bytes, 1) if job is not None else 0
        if share != self._shares.get(repo):
            self._shares[repo] = share
            self._show()
            return
        self._show_jobs()
        row = next((number for number, job in enumerate(self._jobs.items) if job.repo == repo), -1)
        if row >= 0:
            self._jobs.touch(row)

    def _job_view(self, job: DownloadJob) -> JobView:
        queue = self._services.downloads
        words = job_words(job, queue.progress(job.repo))
        if job.state in (DownloadState.RUNNING, DownloadState.WAITING):
            return JobView(words, (("Pause", lambda: queue.pause(job.repo)),))
        if job.code in SIGN_IN_CODES and job.state is DownloadState.FAILED:
            return JobView(words, (("Sign in…", lambda: self._sign_in(job.repo)),))
        return JobView(words, (("Resume", lambda: queue.resume(job.repo)),))

    def _job_ended(self, job: DownloadJob) -> None:
        if job.state is DownloadState.DONE:
            self._library.look()

    # Building

    def _lay_out(self) -> None:
        column = QVBoxLayout()
        column.setContentsMargins(32, 24, 32, 24)
        column.setSpacing(14)
        column.addWidget(self._header)
        column.addWidget(self._list)
        column.addWidget(self._empty)
        column.addSpacing(2)
        column.addWidget(self._jobs_title)
        column.addWidget(self._job_list)
        column.addStretch(1)
        self._stack = QStackedLayout()
        self._stack.addWidget(scrolled(column, _COLUMN_PX, self))
        self._stack.addWidget(self._details)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self._banner)
        outer.addWidget(self._notice)
        outer.addLayout(self._stack, 1)

    def _connect(self) -> None:
        header, downloads, theme = self._header, self._services.downloads, self._services.theme
        header.searched.connect(self._search)
        header.search_left.connect(self._leave_search)
        header.folder_wanted.connect(self._add_folder)
        header.sign_in_wanted.connect(lambda: self._sign_in())
        header.view_changed.connect(self._view_changed)
        header.order_changed.connect(self._order_changed)
        self._details.left.connect(self._leave_details)
        self._details.sign_in_wanted.connect(self._sign_in)
        self._browser.changed.connect(self._show)
        self._browser.described.connect(lambda repo: self._show_details(repo) if repo == self._details.repo else None)
        self._library.changed.connect(self._show)
        self._library.problem.connect(self._banner.show_problem)
        self._library.done.connect(self._notice.show_problem)
        downloads.changed.connect(self._show)
        downloads.progressed.connect(self._advanced)
        downloads.ended.connect(self._job_ended)
        downloads.problem.connect(self._banner.show_problem)
        theme.changed.connect(self._list.refill)
        for key in ("Ctrl+F", "Ctrl+K"):
            QShortcut(QKeySequence(key), self).activated.connect(self._to_search)

    def _to_search(self) -> None:
        self._stack.setCurrentIndex(0)
        header = self._header
        header.search.setFocus(Qt.FocusReason.ShortcutFocusReason)
        header.search.selectAll()


def _show_folder(entry: ModelEntry) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(entry.path))


def _unknown(repo: str) -> HubModel:
    """A repository of which nothing is known yet."""
    return HubModel(repo.split("/")[-1], "", (Release(repo, "", 0),))
