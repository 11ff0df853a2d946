"""Takes models off this computer: deletes the files that Stoker brought and no others, or moves them to another folder."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.errors import EngineError
from engine.protocol import ModelState
from engine.store.hashing import file_matches
from engine.store.records import KnownFile, Record, Records
from engine.store.target import check_folder, existing_parent, free_bytes
from engine.units import format_bytes

_COPY_BYTES = 8 << 20


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


def delete_partial(records: Records, repo: str) -> None:
    """What has arrived of a download that is not wanted any more. A complete model of that name stays."""
    for record in records.of_repo(repo):
        if record.state is ModelState.ARRIVING and not record.folder:
            remove(records, record)


def move(
    records: Records, record: Record, folder: Path, progress: Callable[[int, int], None], is_stopped: Callable[[], bool]
) -> Path:
    """Copy, compare, then delete; the first copy stays whole until the second is. Returns the new folder."""
    if record.state is not ModelState.WHOLE:
        raise EngineError("store.not_whole", f"{record.repo} is not complete.", f"Finish it first: stoker pull {record.repo}")
    parent = check_folder(folder)
    goal = parent / record.repo.replace("/", "--")
    working = goal.with_name(f"{goal.name}.partial")
    named = _by_name(record)
    total = sum(file.size for file in named.values())
    if goal.exists() or working.exists():
        raise EngineError("download.taken", f"{goal} is there already.", "Choose another folder; nothing was moved.")
    if (free := free_bytes(parent)) < total:
        place = existing_parent(parent)
        text = f"{record.repo} takes {format_bytes(total)}; {place} has {format_bytes(free)} free."
        raise EngineError("download.no_space", text, f"Free {format_bytes(total - free)} there, or choose another folder.")
    with _cleaned_up(working, record.repo):
        done, files = 0, []
        for name, file in named.items():
            copy = working / name
            _copy(Path(file.path), copy, partial(_add, progress, done, total), is_stopped)
            if not file_matches(copy, file.size, file.checksum, is_stopped):
                text = f"The copy of {name} is not the same, or was not compared to its end."
                raise EngineError("store.copy", text, "Check both drives; nothing was moved.")
            done += file.size
            files.append(KnownFile(str(goal / name), file.size, file.checksum, copy.stat().st_mtime_ns, True))
        os.replace(working, goal)
    records.put(replace(record, root=str(goal), folder=str(goal), files=tuple(files), pointers=()))
    remove(records, record)
    return goal


@contextmanager
def _cleaned_up(working: Path, repo: str) -> Iterator[None]:
    """Make the folder in which a copy gathers; whatever happens, it is gone afterwards."""
    try:
        working.mkdir(parents=True)
        try:
            yield
        finally:
            shutil.rmtree(working, ignore_errors=True)
    except OSError as error:
        text = f"{repo} could not be copied: {error.strerror or error}."
        raise EngineError("store.copy", text, "Check the drive; nothing was moved.") from error


def _add(progress: Callable[[int, int], None], done: int, total: int, count: int) -> None:
    progress(done + count, total)


def _by_name(record: Record) -> dict[str, KnownFile]:
    """Files by their names in the model's folder; a blob may have several there. Raises `EngineError` where one is missing."""
    folder, found = Path(record.folder), {}
    places = {Path(file.path).resolve(): file for file in record.files}
    for item in folder.iterdir():
        if (file := places.get(item.resolve())) is not None:
            found[item.name] = file
    if set(found.values()) != set(record.files):
        raise EngineError("store.not_whole", f"{record.repo} lacks files.", f"Bring them again: stoker pull {record.repo}")
    return found


def _copy(source: Path, copy: Path, progress: Callable[[int], None], is_stopped: Callable[[], bool]) -> None:
    done, buffer = 0, memoryview(bytearray(_COPY_BYTES))
    with source.open("rb", buffering=0) as reader, copy.open("xb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            if is_stopped():
                raise EngineError("store.stopped", "Moving was stopped.", "The model is where it was.")
            writer.write(buffer[:count])
            done += count
            progress(done)
        os.fsync(writer.fileno())


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
