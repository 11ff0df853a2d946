"""Models on this computer: the folders in which they live, found by name or path. Reads headers, never weights."""

from collections import Counter
from pathlib import Path

from platformdirs import user_data_path

from engine.checkpoint.index import Checkpoint, open_checkpoint
from engine.errors import EngineError
from engine.protocol import ModelEntry


def models_folder() -> Path:
    """Where Stoker keeps models; it need not exist yet."""
    return user_data_path("stoker", appauthor=False) / "models"


def find_model(name: str, folder: Path) -> Path:
    """The folder of a model, given its name in `folder` or any path; a name wins over a folder here of the same name.

    Raises `EngineError` with the names there are.
    """
    is_name = Path(name).name == name and name not in ("", ".", "..")
    for candidate in ([folder / name] if is_name else []) + ([Path(name), _expanded(name)] if name else []):
        try:
            if candidate.is_dir():
                return candidate.resolve()
        except (OSError, ValueError):  # too long, or not a path at all
            continue
    there = [item.name for item in _model_folders(folder)]
    hint = f"There are: {', '.join(there)}." if there else "Make the demo model: stoker demo"
    text = f"There is no model {name!r} in {folder}." if is_name else f"There is no folder {name!r}."
    raise EngineError("model.not_found", text, hint)


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~somebody who does not exist
        return Path(name)


def list_models(folder: Path, supported: frozenset[str]) -> tuple[ModelEntry, ...]:
    """Every model folder, with the reason where one cannot be used. A broken one never hides the others."""
    return tuple(_entry(item, supported) for item in _model_folders(folder))


def _model_folders(folder: Path) -> list[Path]:
    """Raises `EngineError` when the folder of all models is there and cannot be read."""
    try:
        return sorted(item for item in folder.iterdir() if item.is_dir() and item.suffix != ".partial")
    except FileNotFoundError:
        return []
    except OSError as error:
        text = f"The models folder {folder} cannot be read: {error.strerror or error}."
        raise EngineError("store.unreadable", text, "Check what it is and its permissions.") from error


def _entry(folder: Path, supported: frozenset[str]) -> ModelEntry:
    try:
        checkpoint = open_checkpoint(folder)
    except EngineError as error:
        return ModelEntry(folder.name, str(folder), "", "", 0, error.text)
    except Exception as error:  # whatever one folder holds, the others are listed
        return ModelEntry(folder.name, str(folder), "", "", 0, f"It cannot be read ({type(error).__name__}: {error}).")
    architecture = str(checkpoint.config.get("model_type", ""))
    problem = "" if architecture in supported else f"The architecture {architecture or 'of this folder'} is not supported yet."
    return ModelEntry(folder.name, str(folder), architecture, weight_format(checkpoint), checkpoint.nbytes, problem)


def weight_format(checkpoint: Checkpoint) -> str:
    """The type that holds most of the bytes, as people name it: 'BF16'."""
    count: Counter[str] = Counter()
    for ref in checkpoint.tensors.values():
        count[ref.dtype] += ref.nbytes
    dtype = count.most_common(1)[0][0] if count else ""
    return {"F8_E4M3": "FP8", "U8": "4-bit", "I32": "4-bit"}.get(dtype, dtype)
