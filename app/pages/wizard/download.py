"""Steps 5 and 6: the model on its way, and ready."""

from PySide6.QtWidgets import QWidget

from app.core.download_words import SIGN_IN_CODES, job_words
from app.core.wizard import Flow
from app.item_models.rows import RowsModel
from app.pages.services import Services
from app.pages.wizard.body import Body
from app.widgets.progress_row import JobView, ProgressRow
from app.widgets.row_list import RowList
from app.widgets.text_label import text_label
from app.widgets.token_dialog import TokenDialog
from engine.protocol import DownloadJob, DownloadState


class DownloadBody(Body):
    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self.title.setText("Download")
        self._jobs = RowsModel(self)
        self._list = RowList(self._jobs, lambda parent: ProgressRow(services.theme, self._view, parent), self)
        self._note = text_label(kind="muted")
        self.content.addWidget(self._list)
        self.content.addWidget(self._note)
        services.theme.changed.connect(self._list.refill)

    def show_flow(self, flow: Flow) -> None:
        job = flow.job
        self._jobs.set_items([job] if job is not None else [])
        if job is not None:
            self._jobs.touch(0)
        name = flow.choice.name if flow.choice is not None else ""
        is_done = job is not None and job.state is DownloadState.DONE
        self.sentence.setText(f"{name} is here and compared with its checksums." if is_done else f"{name} is on its way.")
        on_its_way = "It goes on while you do something else, and after a restart. When it is here, the chat begins."
        self._note.setText("" if is_done else on_its_way)

    def _view(self, job: DownloadJob) -> JobView:
        queue, repo = self._services.downloads, job.repo
        words = job_words(job, queue.progress(repo))
        if job.state is DownloadState.DONE:
            return JobView(words)
        if job.state in (DownloadState.RUNNING, DownloadState.WAITING):
            return JobView(words, (("Pause", lambda: queue.pause(repo)),))
        if job.code in SIGN_IN_CODES and job.state is DownloadState.FAILED:
            return JobView(words, (("Sign in…", lambda: self._sign_in(repo)),))
        return JobView(words, (("Resume", lambda: queue.resume(repo)),))

    def _sign_in(self, repo: str) -> None:
        token = self._services.token
        dialog = TokenDialog(lambda value, keep: token.save(value, keep=keep), self, repo=repo, has_token=bool(token.value))
        if dialog.exec():
            self._services.downloads.resume(repo)
