"""Where model folders lie: Stoker's own, the Hugging Face cache, folders that a person chose. Looks at names, opens nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import EngineError
from engine.store.files import CONFIG
from engine.store.records import Record, Records
from engine.store.target import hub_cache


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` is what the engine opens; `repo` is empty where nothing tells it."""

    folder: Path
    repo: str = ""
    record: Record | None = None

    @property
    def name(self) -> str:
        return self.repo or self.folder.name


def find_places(own: Path, records: Records) -> list[Place]:
    """Every one once, in the order: Stoker's own, the cache, chosen folders, those added by hand.

    Raises `EngineError` when `own` is there and cannot be read; another folder that cannot be read holds no models.
    """
    known = {record.folder: record for record in records.all() if record.folder}
    places: dict[str, Place] = {}
    for place in (*map(Place, _own_folders(own)), *_others(records)):
        record = known.get(str(place.folder))
        repo = record.repo if record is not None else place.repo
        places.setdefault(str(place.folder), Place(place.folder, repo, record))
    return list(places.values())


def is_single(folder: Path) -> bool:
    """Whether it means to be one model, be it whole or not."""
    return folder.name.startswith("models--") or (folder / CONFIG).exists() or any(folder.glob("*.safetensors"))


def _own_folders(own: Path) -> list[Path]:
    """All of them, a broken one too: only models belong there."""
    try:
        return sorted(item for item in own.iterdir() if item.is_dir() and item.suffix != ".partial")
    except FileNotFoundError:
        return []
    except OSError as error:
        text = f"The models folder {own} cannot be read: {error.strerror or error}."
        raise EngineError("store.unreadable", text, "Check what it is and its permissions.") from error


def _others(records: Records) -> Iterator[Place]:
    for folder in (hub_cache(), *records.folders()):
        yield from _below(folder, depth=2)
    for folder in records.added():
        yield from _at(folder) if folder.is_dir() else ()


def _below(folder: Path, depth: int) -> Iterator[Place]:
    """`name`, `maker/name` or a cache; other things in between are passed over."""
    for item in _folders_in(folder):
        found = list(_at(item))
        yield from found
        if not found and depth > 1 and not item.name.startswith("models--"):
            yield from _below(item, depth - 1)


def _at(folder: Path) -> Iterator[Place]:
    """The model in this very folder, which may be one of the cache's with its snapshots."""
    if folder.name.startswith("models--"):
        snapshot = _snapshot(folder)
        if snapshot is not None:
            yield Place(snapshot, folder.name.removeprefix("models--").replace("--", "/", 1))
    elif folder.suffix != ".partial" and _is_model(folder):
        yield Place(folder)


def _snapshot(repository: Path) -> Path | None:
    """The one that `main` names, else the newest; None where it is no model in safetensors."""
    found = [item for item in _folders_in(repository / "snapshots") if _is_model(item)]
    try:
        main = (repository / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = ""
    return max(found, key=lambda item: (item.name == main, item.stat().st_mtime), default=None)


def _is_model(folder: Path) -> bool:
    try:
        return (folder / CONFIG).exists() and any(folder.glob("*.safetensors"))
    except OSError:
        return False


def _folders_in(folder: Path) -> list[Path]:
    try:
        return sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))
    except OSError:
        return []
