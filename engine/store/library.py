"""Models on this computer: the folders in which they live, found by name or path. Reads headers, never weights."""

import os
from dataclasses import replace
from pathlib import Path

from platformdirs import user_data_path

from engine.checkpoint.index import open_checkpoint
from engine.errors import EngineError
from engine.protocol import ModelEntry, ModelState
from engine.store.formats import format_of
from engine.store.places import Place, find_places, is_single
from engine.store.records import Record, Records
from engine.store.target import hub_cache

_UNUSABLE = {
    ModelState.ARRIVING: "It is not complete yet.",
    ModelState.DAMAGED: "A file of it is damaged: download it again, which brings that file alone.",
}


def data_folder() -> Path:
    """Stoker's own folder of this person."""
    return user_data_path("stoker", appauthor=False)


def models_folder() -> Path:
    """Where Stoker keeps models; it need not exist yet."""
    return data_folder() / "models"


def find_model(name: str, folder: Path) -> Path:
    """The folder of a model: its name in `folder`, any path, or the name that `list_models` or the Hub gives it.

    A name in `folder` wins over a folder here of the same name. Raises `EngineError` with the names there are.
    """
    is_name = Path(name).name == name and name not in ("", ".", "..")
    for candidate in ([folder / name] if is_name else []) + ([Path(name), _expanded(name)] if name else []):
        try:
            if candidate.is_dir():
                return candidate.resolve()
        except (OSError, ValueError):  # too long, or not a path at all
            continue
    if not name:
        raise EngineError("model.not_found", "The name of the model is empty.", "Give its name or its folder: stoker models")
    if _is_file(_expanded(name)):
        text = f"{name} is a file, and a model is a folder with its configuration."
        raise EngineError("model.is_a_file", text, f"Give the folder: {_expanded(name).absolute().parent}")
    places = find_places(folder, Records(folder.parent))
    for place in places:
        names = (place.name, place.name.split("/")[-1], place.folder.name)
        if name.lower() in map(str.lower, names) and place.folder.is_dir():
            return place.folder.absolute()
    hint = f"There are: {', '.join(place.name for place in places)}." if places else "Make the demo model: stoker demo"
    text = f"There is no model {name!r} in {folder}." if is_name else f"There is no folder {name!r}."
    raise EngineError("model.not_found", text, hint)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or not a path at all
        return False


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who does not exist
        return Path(name)


def list_models(folder: Path, supported: frozenset[str]) -> tuple[ModelEntry, ...]:
    """Models in `folder`, the Hugging Face cache, chosen folders and those added by hand, with the reason where one is no use.

    A broken one never hides the others. One whose drive is not there stays in the list, from memory.
    """
    records = Records(folder.parent)
    _settle_moves(folder.parent, records)
    used = records.last_used()
    entries = [
        replace(_entry(place, supported), last_used=used.get(os.path.realpath(place.folder), 0.0))
        for place in find_places(folder, records)
    ]
    arriving = [_arriving(record) for record in records.all() if not record.folder]
    away = _away(records, {entry.path for entry in entries})
    outside = [entry for entry in entries if not Path(entry.path).is_relative_to(folder)]
    records.remember([*outside, *away])
    return (*entries, *arriving, *away)


def _settle_moves(data: Path, records: Records) -> None:
    """What a move that was killed has left; one that runs now holds its repository's lock."""
    if not (repos := {move.repo for move in records.moves()}):
        return
    from engine.store.jobs import Jobs  # here, since they bring the Hub's client
    from engine.store.moves import settle

    for repo in repos:
        if (lock := Jobs(data).lock(repo, 0)) is not None:
            try:
                settle(records, repo)
            finally:
                lock.release()


def watched_folders(folder: Path, records: Records) -> tuple[Path, ...]:
    """Where models come and go: Stoker's own folder, the Hugging Face cache, those that a person chose or added."""
    return folder, hub_cache(), *records.folders(), *records.added()


def add_folder(folder: Path, records: Records) -> None:
    """A model of its own, or a folder to look for models in. Raises `EngineError` saying what a bad one lacks."""
    folder = folder.expanduser().absolute()
    try:
        is_folder = folder.is_dir()
    except (OSError, ValueError):  # too long, or not a path at all
        is_folder = False
    if not is_folder:
        raise EngineError("store.not_a_folder", f"{str(folder)[:200]} is no folder.", "Choose a folder.")
    if os.path.ismount(folder):
        raise EngineError("store.drive_root", f"{folder} is a whole drive.", "Choose the folder on it that holds models.")
    is_model = is_single(folder)
    if is_model and not folder.name.startswith("models--"):
        open_checkpoint(folder)
    records.add_folder(folder, is_model=is_model)


def _away(records: Records, found: set[str]) -> list[ModelEntry]:
    """Those seen before below a folder that is not there now. One whose folder is there was deleted by somebody."""
    anchors = [*records.folders(), *records.added()]
    if not hub_cache().parent.is_dir():  # where it is, an absent cache has only been cleaned away
        anchors.append(hub_cache())
    gone = [anchor for anchor in anchors if not anchor.is_dir()]
    return [
        replace(entry, state=ModelState.AWAY, problem=f"{anchor} is not available: connect its drive.")
        for entry in records.seen()
        for anchor in gone
        if entry.path not in found and Path(entry.path).is_relative_to(anchor)
    ]


def _arriving(record: Record) -> ModelEntry:
    nbytes = sum(file.size for file in record.files)
    return ModelEntry(
        record.repo, record.root, "", "", nbytes, "It is not complete yet.", record.repo, record.licence, record.state, True
    )


def _entry(place: Place, supported: frozenset[str]) -> ModelEntry:
    record = place.record
    base = ModelEntry(place.name, str(place.folder), "", "", 0, repo=place.repo)
    if record is not None:
        is_ours = any(file.is_ours for file in record.files)
        base = replace(base, licence=record.licence, state=record.state, is_ours=is_ours)
    try:
        checkpoint = open_checkpoint(place.folder)
    except EngineError as error:
        return replace(base, problem=error.text)
    except Exception as error:  # whatever one folder holds, the others are listed
        return replace(base, problem=f"It cannot be read ({type(error).__name__}: {error}).")
    architecture = str(checkpoint.config.get("model_type", ""))
    problem = "" if architecture in supported else f"The architecture {architecture or 'of this folder'} is not supported yet."
    if base.state in _UNUSABLE:
        problem = _UNUSABLE[base.state]
    return replace(
        base,
        architecture=architecture,
        weight_format=format_of(checkpoint),
        bytes=checkpoint.nbytes,
        problem=problem,
    )
