"""What Stoker knows of models beyond their files: which files it brought, extra folders, when each was last used.

Kept in `library.json` beside the models folder. Only files named here as its own are ever removed.
"""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.protocol import ModelEntry, ModelState
from engine.store.state_file import StateFile


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A file whose checksum was right when it had this size and time. `is_ours`: Stoker brought it."""

    path: str
    size: int
    checksum: str
    mtime_ns: int
    is_ours: bool

    @property
    def is_unchanged(self) -> bool:
        try:
            stat = Path(self.path).stat()
        except OSError:
            return False
        return (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns)


@dataclass(frozen=True, slots=True)
class Record:
    """A model that Stoker brought or is bringing. `folder` is where it is loaded from, `root` all that it may clean up."""

    repo: str
    commit: str
    root: str
    folder: str
    licence: str
    state: ModelState
    files: tuple[KnownFile, ...] = ()
    pointers: tuple[str, ...] = ()  # links and refs that Stoker made
    verified_at: float = 0.0  # seconds since 1970

    def known(self, path: Path) -> KnownFile | None:
        return next((file for file in self.files if file.path == str(path)), None)

    def with_file(self, file: KnownFile) -> "Record":
        return replace(self, files=(*(other for other in self.files if other.path != file.path), file))


@dataclass(frozen=True, slots=True)
class Move:
    """One that has begun: of the model in `root` to `goal`, where `files` are made by their names."""

    repo: str
    commit: str
    root: str
    goal: str
    files: tuple[str, ...]


class Records:
    def __init__(self, data: Path) -> None:
        self._file = StateFile(data / "library.json")

    def all(self) -> list[Record]:
        return [_record(item) for item in self._file.read().get("models", [])]

    def of_repo(self, repo: str) -> list[Record]:
        return [record for record in self.all() if record.repo.lower() == repo.lower()]

    def put(self, record: Record) -> None:
        """In place of the one with the same root and commit."""
        with self._file.edit() as value:
            value["models"] = [*_others(value, record), asdict(record)]

    def drop(self, record: Record) -> None:
        with self._file.edit() as value:
            value["models"] = _others(value, record)

    def moves(self) -> list[Move]:
        """Those that have begun and not ended."""
        return [Move(**item | {"files": tuple(item["files"])}) for item in self._file.read().get("moves", [])]

    def note_move(self, move: Move) -> None:
        with self._file.edit() as value:
            value["moves"] = [*value.get("moves", []), asdict(move)]

    def drop_move(self, move: Move) -> None:
        with self._file.edit() as value:
            value["moves"] = [item for item in value.get("moves", []) if (item["root"], item["goal"]) != (move.root, move.goal)]

    def folders(self) -> list[Path]:
        """Chosen folders, in which models lie."""
        return [Path(item) for item in self._file.read().get("folders", [])]

    def added(self) -> list[Path]:
        """Folders of single models, added by hand."""
        return [Path(item) for item in self._file.read().get("added", [])]

    def add_folder(self, folder: Path, *, is_model: bool) -> None:
        key = "added" if is_model else "folders"
        with self._file.edit() as value:
            value[key] = sorted({*value.get(key, []), str(folder)})

    def forget_folder(self, folder: Path) -> None:
        """The folder itself stays as it is. Raises `EngineError` where it is not in the list."""
        with self._file.edit() as value:
            if not any(str(folder) in value.get(key, []) for key in ("added", "folders")):
                raise EngineError("store.not_listed", f"{folder} is not in the list.", "See: stoker models --json")
            for key in ("added", "folders"):
                value[key] = [item for item in value.get(key, []) if item != str(folder)]
            value["seen"] = [item for item in value.get("seen", []) if not Path(item["path"]).is_relative_to(folder)]

    def seen(self) -> list[ModelEntry]:
        """As they were when their drive was last there."""
        return [_entry(item) for item in self._file.read().get("seen", [])]

    def remember(self, entries: list[ModelEntry]) -> None:
        """Of models outside of Stoker's own folders; written only where something changed."""
        fresh = [asdict(entry) for entry in entries]
        if fresh != self._file.read().get("seen", []):
            with self._file.edit() as value:
                value["seen"] = fresh

    def last_used(self) -> dict[str, float]:
        """Seconds since 1970 by folder."""
        used = self._file.read().get("used", {})
        return {str(folder): float(seconds) for folder, seconds in used.items()}

    def note_used(self, folder: Path) -> None:
        with self._file.edit() as value:
            value.setdefault("used", {})[str(folder)] = time.time()


def _others(value: dict[str, Any], record: Record) -> list[dict[str, Any]]:
    return [item for item in value.get("models", []) if (item["root"], item["commit"]) != (record.root, record.commit)]


def _record(item: dict[str, Any]) -> Record:
    files = tuple(KnownFile(**file) for file in item["files"])
    return Record(**item | {"files": files, "pointers": tuple(item["pointers"]), "state": ModelState(item["state"])})


def _entry(item: dict[str, Any]) -> ModelEntry:
    return ModelEntry(**item | {"state": ModelState(item["state"])})
