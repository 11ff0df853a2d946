"""Takes models off this computer: deletes the files that Stoker brought and no others."""

import os
from pathlib import Path

from engine.errors import EngineError
from engine.protocol import DownloadAction, ModelState
from engine.store.jobs import Jobs
from engine.store.records import Record, Records

_END_SECONDS = 5.0  # a download that is told to end has let go by then


def record_for(records: Records, name: str) -> Record:
    """By folder, repository or folder name. Raises `EngineError` where Stoker did not bring it."""
    for record in records.all():
        names = (record.repo, record.folder, Path(record.folder or record.root).name)
        if name and name.lower() in map(str.lower, names):
            return record
    raise EngineError(
        "store.not_ours", f"Stoker did not bring {name}, so it does not touch it.", "Delete its folder yourself if it may go."
    )


def files_of(records: Records, record: Record) -> tuple[list[Path], int]:
    """What removing would delete, and the bytes that this gives back. Files that another revision needs are left out."""
    shared = {
        file.path
        for other in records.all()
        if (other.root, other.commit) != (record.root, record.commit)
        for file in other.files
    }
    ours = [Path(file.path) for file in record.files if file.is_ours and file.path not in shared]
    pointers = [pointer for pointer in map(Path, record.pointers) if not _leads_elsewhere(pointer, record)]
    parts = [path for path in _parts(record) if path.exists()]
    every = dict.fromkeys((*pointers, *ours, *parts))
    found = [path for path in every if path.exists() or path.is_symlink()]
    return found, sum(path.stat().st_size for path in found if not path.is_symlink())


def remove(records: Records, record: Record) -> tuple[list[Path], int]:
    """Delete them, and the folders that are empty then. Raises `EngineError` where the drive refuses."""
    found, nbytes = files_of(records, record)
    try:
        for path in found:
            path.unlink(missing_ok=True)
        _remove_empty(Path(record.root))
    except OSError as error:
        text = f"{error.filename} cannot be deleted: {error.strerror or error}."
        raise EngineError("store.remove", text, "Close what uses it, and try again.") from error
    records.drop(record)
    return found, nbytes


def cancel(jobs: Jobs, records: Records, repo: str, *, delete: bool) -> None:
    """Take a download off the queue. Deleting waits until whoever works on it has let go. Raises `EngineError`."""
    jobs.edit(repo, DownloadAction.DELETE if delete else DownloadAction.CANCEL)
    if delete:
        with jobs.held(repo, _END_SECONDS):
            delete_partial(records, repo)


def delete_partial(records: Records, repo: str) -> None:
    """What has arrived of a download that is not wanted any more. A complete model of that name stays."""
    for record in records.of_repo(repo):
        if record.state is ModelState.ARRIVING and not record.folder:
            remove(records, record)


def _parts(record: Record) -> list[Path]:
    """Of a download that was left half way: all that gathers in this root."""
    root = Path(record.root)
    folders = [root / "blobs", root] if (root / "blobs").is_dir() else [root]
    inside = (path for folder in folders if folder.is_dir() for path in folder.iterdir())
    return [path for path in inside if path.name.endswith((".part", ".part.log"))]


def _leads_elsewhere(pointer: Path, record: Record) -> bool:
    """A ref that names another commit by now."""
    if pointer.is_symlink() or pointer.parent == Path(record.folder):
        return False
    try:
        return pointer.read_text(encoding="utf-8").strip() != record.commit
    except OSError:
        return False


def _remove_empty(root: Path) -> None:
    """`root` and the folders in it, where nothing of anybody is left in them."""
    if not root.is_dir():
        return
    for folder, _, _ in os.walk(root, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)
