"""The models on this computer: listed, watched, verified, moved and removed. Knows no widget; asks through callbacks."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QFile, QFileSystemWatcher, QObject, QTimer, Signal

from app.backends.store import Store
from app.core.figures import format_bytes
from engine.protocol import (
    AddFolder,
    Failed,
    ForgetFolder,
    ListModels,
    Message,
    ModelEntry,
    Models,
    ModelState,
    MoveModel,
    Progress,
    Removed,
    RemoveModel,
    VerifyModel,
)

_SETTLE_MS = 1000  # a download or a copy changes a folder many times
_AWAY_MS = 5000  # a drive that comes back tells nobody
_MOST_WATCHED = 300
Confirm = Callable[[str, str], bool]  # question, the word on the button


class Library(QObject):
    changed = Signal()
    problem = Signal(str)
    done = Signal(str)  # a sentence on what has been done

    def __init__(self, store: Store, confirm: Confirm, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._store, self._confirm = store, confirm
        self.models: tuple[ModelEntry, ...] | None = None  # None until they are known
        self.folder = ""
        self.folders: tuple[str, ...] = ()
        self.busy: dict[str, Progress | None] = {}  # by path: being compared or moved
        self._busy_ids: dict[str, int] = {}
        self._watcher = QFileSystemWatcher(self)
        self._settle = QTimer(self, singleShot=True, interval=_SETTLE_MS)
        self._settle.timeout.connect(self.look)
        self._watcher.directoryChanged.connect(lambda _: self._settle.start())
        self._away = QTimer(self, interval=_AWAY_MS)
        self._away.timeout.connect(self.look)
        store.models.connect(self._listed)

    def look(self) -> None:
        self._store.ask(ListModels, failed=self._failed)

    def entry(self, path: str) -> ModelEntry | None:
        return next((model for model in self.models or () if model.path == path), None)

    def of_repo(self, repo: str) -> ModelEntry | None:
        """A model that can be loaded, wherever it came from."""
        usable = (model for model in self.models or () if model.repo.lower() == repo.lower() and not model.problem)
        return next(usable, None)

    def add_folder(self, folder: str) -> None:
        self._store.ask(AddFolder, folder, failed=self._failed)

    def forget_folder(self, folder: str) -> None:
        self._store.ask(ForgetFolder, folder, failed=self._failed)

    def chosen_folder_of(self, entry: ModelEntry) -> str:
        """The folder of the list to which it owes its place there; empty for Stoker's own and the cache."""
        return next((folder for folder in self.folders[2:] if Path(entry.path).is_relative_to(folder)), "")

    def verify(self, entry: ModelEntry) -> None:
        self._work(entry, VerifyModel, entry.path, done=lambda _: self._verified(entry))

    def move(self, entry: ModelEntry, folder: str) -> None:
        self._work(entry, MoveModel, entry.path, folder, done=lambda _: self.done.emit(f"{entry.name} is in {folder} now."))

    def stop(self, entry: ModelEntry) -> None:
        """End comparing or moving; nothing is lost."""
        if entry.path in self._busy_ids:
            self._store.cancel(self._busy_ids[entry.path])

    def remove(self, entry: ModelEntry) -> None:
        """Ask how much it is, then the person, then the trash, and delete for good only where there is no trash."""
        self._store.ask(RemoveModel, entry.path, True, done=lambda found: self._remove(entry, found), failed=self._failed)

    def _remove(self, entry: ModelEntry, found: Removed) -> None:
        amount = format_bytes(found.bytes)
        others = "" if entry.is_ours else " Files that other programs brought stay."
        if not self._confirm(f"Move {entry.name}, {amount}, to the trash?{others}", "Move to trash"):
            return
        kept = [file for file in found.files if not _trash(file)]
        question = f"There is no trash for {entry.name}, or it refuses. Delete {amount} for good? They cannot be brought back."
        if kept and not self._confirm(question, "Delete for good"):
            self.look()
            return
        told = f"{entry.name} has been removed: {amount} {'are free again' if kept else 'are in the trash'}."

        def end(_: Removed) -> None:
            self.done.emit(told)
            self.look()

        self._store.ask(RemoveModel, entry.path, done=end, failed=self._failed)

    def _work(self, entry: ModelEntry, make: Callable[..., Message], *fields: str, done: Callable[[Models], object]) -> None:
        if entry.path in self.busy:
            return

        def end() -> None:
            self.busy.pop(entry.path, None)
            self._busy_ids.pop(entry.path, None)
            self.changed.emit()

        def succeed(models: Models) -> None:
            end()
            done(models)

        def fail(failed: Failed) -> None:
            end()
            self._failed(failed)

        def step(progress: Progress) -> None:
            self.busy[entry.path] = progress
            self.changed.emit()

        self.busy[entry.path] = None
        self._busy_ids[entry.path] = self._store.ask(make, *fields, done=succeed, failed=fail, step=step)
        self.changed.emit()

    def _verified(self, entry: ModelEntry) -> None:
        found = self.entry(entry.path)
        if found is not None and found.state is ModelState.WHOLE:
            self.done.emit(f"{entry.name}: every file matches its checksum.")
        elif found is not None and found.state is ModelState.DAMAGED:
            self.problem.emit(f"{entry.name} is damaged. Download it again, which brings the damaged files alone.")

    def _listed(self, models: Models) -> None:
        self.models, self.folder, self.folders = models.models, models.folder, models.watched
        self._watch()
        is_away = any(model.state is ModelState.AWAY for model in models.models)
        if is_away != self._away.isActive():
            self._away.start() if is_away else self._away.stop()
        self.changed.emit()

    def _watch(self) -> None:
        """The folders themselves, and each model's own, as far as they are there."""
        wanted = {
            str(path) for path in map(Path, (*self.folders, *(model.path for model in self.models or ()))) if path.is_dir()
        }
        watched = set(self._watcher.directories())
        if gone := watched - wanted:
            self._watcher.removePaths(sorted(gone))
        if new := sorted(wanted - watched)[:_MOST_WATCHED]:
            self._watcher.addPaths(new)

    def _failed(self, failed: Failed) -> None:
        if failed.code != "store.stopped":
            self.problem.emit(f"{failed.text} {failed.hint}".strip())


def _trash(file: str) -> bool:
    """Whether it is out of the way; a link is left to the clean-up that follows."""
    path = Path(file)
    if path.is_symlink() or not path.exists():
        return True
    answer = QFile.moveToTrash(file)
    return bool(answer[0] if isinstance(answer, tuple) else answer)
