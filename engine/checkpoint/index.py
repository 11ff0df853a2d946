"""A checkpoint folder as data: its config and where each tensor lies. Reads headers alone and checks all of them at once."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.checkpoint.naming import model_name
from engine.checkpoint.safetensors import TensorRef, read_header
from engine.errors import EngineError

_INDEX = "model.safetensors.index.json"
_NUMBERED = re.compile(r".*-\d+-of-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """`tensors` by published name; `config` is the parsed config.json, unchanged."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, TensorRef]

    @property
    def name(self) -> str:
        return model_name(self.folder)

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for ref in self.tensors.values())

    def tensor(self, name: str) -> TensorRef:
        """The tensor of that name. Raises `EngineError` when the checkpoint has none."""
        ref = self.tensors.get(name)
        if ref is None:
            raise EngineError(
                "checkpoint.missing_tensor",
                f"{self.name} has no tensor {name}.",
                "The download is incomplete or of another architecture.",
            )
        return ref


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read config and all headers of a folder. Raises `EngineError` naming the file and what is wrong with it."""
    if not folder.is_dir():
        raise EngineError("model.not_found", f"There is no model folder {folder}.", "Check the path, or run: stoker models")
    if not (folder / "config.json").exists() and not any(folder.glob("*.safetensors")):
        text = f"{model_name(folder) or folder} is no model folder: it has neither config.json nor .safetensors files."
        raise EngineError("model.not_found", text, "Give the folder of a checkpoint.")
    config = read_json(folder / "config.json")
    tensors: dict[str, TensorRef] = {}
    weight_map = _weight_map(folder)
    for file in _weight_files(folder, weight_map):
        for name, ref in read_header(file).items():
            if name in tensors:
                other = tensors[name].file.name
                raise EngineError(
                    "checkpoint.duplicate_tensor",
                    f"Tensor {name} is in both {other} and {file.name}.",
                    "Remove the file that does not belong.",
                )
            tensors[name] = ref
    _check_complete(weight_map, tensors)
    return Checkpoint(folder, config, tensors)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file of a model folder. Raises `EngineError` where it is absent or no object."""
    try:
        if file.exists() and not file.is_file():  # a pipe or a device would be read for ever
            raise FileNotFoundError(file)
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(
            "model.missing_file",
            f"{model_name(file.parent)} has no {file.name}.",
            "The download is incomplete: get the model again.",
        ) from error
    except OSError as error:
        raise EngineError(
            "checkpoint.unreadable", f"{file.name} cannot be read: {error.strerror or error}.", "Check the drive."
        ) from error
    except (ValueError, RecursionError) as error:
        raise EngineError(
            "model.bad_json", f"{file.name} of {model_name(file.parent)} is not valid JSON.", "Get the file again."
        ) from error
    if not isinstance(value, dict):
        raise EngineError(
            "model.bad_json", f"{file.name} of {model_name(file.parent)} holds no JSON object.", "Get the file again."
        )
    return value


def suggested_expert_ram(folder: Path) -> str | None:
    """A model that Stoker made may carry its own budget in stoker.json, so that a demo shows what it is for."""
    try:
        value = json.loads((folder / "stoker.json").read_text(encoding="utf-8")).get("expert_ram")
    except (OSError, ValueError, AttributeError):
        return None
    return value if isinstance(value, str) else None


def _weight_files(folder: Path, weight_map: dict[str, str] | None) -> list[Path]:
    present = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    if weight_map is not None:
        wanted = {folder / name for name in weight_map.values()}
        missing = sorted(file.name for file in wanted if not file.is_file())
        if missing:
            raise EngineError(
                "model.missing_file",
                f"{model_name(folder)} lacks {len(missing)} of {len(wanted)} weight files, first {missing[0]}.",
                "The download is incomplete: get the model again.",
            )
        return sorted(wanted)
    if not present:
        other = next((file.name for file in folder.iterdir() if file.suffix in (".gguf", ".bin", ".pt", ".pth")), None)
        reason = f"only {other}, which Stoker does not read" if other else "no .safetensors file"
        raise EngineError(
            "model.missing_file", f"{model_name(folder)} has {reason}.", "Get the safetensors release of this model."
        )
    _check_shard_count(folder, present)
    return present


def _weight_map(folder: Path) -> dict[str, str] | None:
    """File name by tensor name from the index file; None where there is none."""
    if not (folder / _INDEX).is_file():
        return None
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise EngineError("model.bad_json", f"{_INDEX} of {model_name(folder)} has no weight_map.", "Get the file again.")
    outside = next((name for name in weight_map.values() if Path(name).name != name or len(name) > 250), None)
    if outside is not None:
        raise EngineError(
            "model.bad_json", f"{_INDEX} of {model_name(folder)} points outside the folder: {outside}.", "Get the file again."
        )
    return weight_map


def _check_shard_count(folder: Path, present: list[Path]) -> None:
    """`name-00001-of-00004.safetensors` tells how many there must be, also without an index file."""
    numbered = [match for file in present if (match := _NUMBERED.fullmatch(file.name))]
    totals = {int(match[1]) for match in numbered}
    if len(totals) == 1 and (total := totals.pop()) > len(numbered):
        raise EngineError(
            "model.missing_file",
            f"{model_name(folder)} has {len(numbered)} of {total} weight files.",
            "The download is incomplete: get the model again.",
        )


def _check_complete(weight_map: dict[str, str] | None, tensors: dict[str, TensorRef]) -> None:
    for name, file_name in (weight_map or {}).items():
        if name not in tensors:
            raise EngineError(
                "checkpoint.missing_tensor",
                f"{file_name} lacks tensor {name}, which {_INDEX} places there.",
                "The download is damaged: get this file again.",
            )
