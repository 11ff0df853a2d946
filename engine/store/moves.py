"""Moves models that Stoker brought to other folders: copy, compare, then delete. One that was killed is finished or undone."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.errors import EngineError
from engine.protocol import ModelState
from engine.store.hashing import file_matches
from engine.store.records import KnownFile, Move, Record, Records
from engine.store.remove import remove
from engine.store.target import check_folder, existing_parent, free_bytes
from engine.units import format_bytes

_COPY_BYTES = 8 << 20


def move(
    records: Records, record: Record, folder: Path, progress: Callable[[int, int], None], is_stopped: Callable[[], bool]
) -> Path:
    """The first copy stays whole until the second is. Returns the new folder. The repository's lock must be held."""
    if record.state is not ModelState.WHOLE:
        raise EngineError("store.not_whole", f"{record.repo} is not complete.", f"Finish it first: stoker pull {record.repo}")
    parent = check_folder(folder)
    goal = parent / record.repo.replace("/", "--")
    working = _working(goal)
    settle(records, record.repo)
    named = _by_name(record)
    total = sum(file.size for file in named.values())
    if goal.exists() or working.exists():
        raise EngineError("download.taken", f"{goal} is there already.", "Choose another folder; nothing was moved.")
    if (free := free_bytes(parent)) < total:
        place = existing_parent(parent)
        text = f"{record.repo} takes {format_bytes(total)}; {place} has {format_bytes(free)} free."
        raise EngineError("download.no_space", text, f"Free {format_bytes(total - free)} there, or choose another folder.")
    noted = Move(record.repo, record.commit, record.root, str(goal), tuple(named))
    with _cleaned_up(records, noted):
        done, files = 0, []
        for name, file in named.items():
            copy = working / name
            _copy(Path(file.path), copy, partial(_add, progress, done, total), is_stopped)
            if not file_matches(copy, file.size, file.checksum, is_stopped):
                text = f"The copy of {name} is not the same, or was not compared to its end."
                raise EngineError("store.copy", text, "Check both drives; nothing was moved.")
            done += file.size
            files.append(KnownFile(str(goal / name), file.size, file.checksum, copy.stat().st_mtime_ns, True))
        records.put(replace(record, root=str(goal), folder=str(goal), files=tuple(files), pointers=()))
        os.replace(working, goal)
    settle(records, record.repo)
    return goal


def settle(records: Records, repo: str) -> None:
    """Bring every move of this repository to an end, whatever interrupted it. The repository's lock must be held.

    A copy that was not complete is deleted: the files that the move made, and no others. Where the copy was complete the
    first one goes instead. Nothing happens while the drive with the copy is away.
    """
    for noted in records.moves():
        goal, working = Path(noted.goal), _working(Path(noted.goal))
        if noted.repo != repo or not goal.parent.is_dir():
            continue
        copied = _found(records, noted, noted.goal)
        with suppress(OSError):  # a drive that refuses is asked again the next time
            if copied is None:
                _delete(working, noted.files)
            else:
                if not goal.exists():
                    os.replace(working, goal)
                records.add_folder(goal.parent, is_model=False)
                if (first := _found(records, noted, noted.root)) is not None:
                    remove(records, first)
            records.drop_move(noted)


def _found(records: Records, noted: Move, root: str) -> Record | None:
    return next((record for record in records.all() if (record.root, record.commit) == (root, noted.commit)), None)


def _working(goal: Path) -> Path:
    """Where the copy gathers; the library passes such names over."""
    return goal.with_name(f"{goal.name}.partial")


def _delete(working: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (working / name).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        os.rmdir(working)


@contextmanager
def _cleaned_up(records: Records, noted: Move) -> Iterator[None]:
    """Make the folder in which a copy gathers, noted before; where anything goes wrong, it and the note are gone afterwards."""
    working = _working(Path(noted.goal))
    records.note_move(noted)
    try:
        working.mkdir(parents=True)
        yield
    except BaseException as error:
        copied = _found(records, noted, noted.goal)
        if copied is not None:
            records.drop(copied)
        with suppress(OSError):
            _delete(working, noted.files)
            records.drop_move(noted)
        if isinstance(error, OSError):
            text = f"{noted.repo} could not be copied: {error.strerror or error}."
            raise EngineError("store.copy", text, "Check the drive; nothing was moved.") from error
        raise


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
