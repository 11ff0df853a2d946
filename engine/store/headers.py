"""A checkpoint on the Hub as data, from config.json and the headers of its weight files: some hundred KB of most models.

Where all headers are megabytes, some of them are read, and layers that repeat are filled in, as the sizes of the files confirm.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef, header_length, parse_header
from engine.errors import EngineError
from engine.store.files import CONFIG, RemoteFile, Repository
from engine.store.hub import patiently
from engine.store.repeats import filled
from engine.store.web import Line, read_piece
from engine.units import MB, format_bytes

_FIRST_BYTES = 16 << 10  # holds the header of many shards
_AT_ONCE = 8
_ALL_BYTES = 2 * MB  # of headers that are read without a second thought
_MOST_SAMPLED = 3 * _AT_ONCE  # files; where they do not tell what all others hold, those are read too
_LARGEST_CONFIG = 10 * MB


def read_remote(line: Line, repository: Repository, is_stopped: Callable[[], bool] = lambda: False) -> Checkpoint:
    """Its files are named, not there. Raises `EngineError` or `StoppedError`."""
    weights = [file for file in repository.files if file.name.endswith(".safetensors")]
    config = next(file for file in repository.files if file.name == CONFIG)

    def header(file: RemoteFile) -> dict[str, TensorRef]:
        return patiently(lambda: _header(line, repository, file), line, repository.repo, is_stopped)

    values = patiently(lambda: _config(line, repository, config), line, repository.repo, is_stopped)
    found: dict[int, dict[str, TensorRef]] = {}
    order = _from_both_ends(len(weights))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        while order:
            count = _AT_ONCE if len(found) < _MOST_SAMPLED else len(order)
            batch, order = order[:count], order[count:]
            found |= dict(zip(batch, pool.map(lambda number: header(weights[number]), batch), strict=True))
            if order and (tensors := _filled(found, weights, values)) is not None:
                return Checkpoint(Path(repository.repo), values, tensors)
    tensors = {name: ref for number in sorted(found) for name, ref in found[number].items()}
    return Checkpoint(Path(repository.repo), values, tensors)


def _from_both_ends(count: int) -> list[int]:
    """Numbers of files: the layers begin in the first ones, and what comes after them is in the last."""
    return sorted(range(count), key=lambda number: (min(number, count - 1 - number), number))


def _filled(
    found: dict[int, dict[str, TensorRef]], weights: list[RemoteFile], config: dict[str, Any]
) -> dict[str, TensorRef] | None:
    """All tensors from those found so far, where the rest would be much to read and the layers repeat."""
    per_file = sum(_header_bytes(tensors, weights[number]) for number, tensors in found.items()) / len(found)
    if per_file * len(weights) <= _ALL_BYTES:
        return None
    return filled(found, len(weights), config, sum(file.size for file in weights) - int(per_file * len(weights)))


def _header_bytes(tensors: dict[str, TensorRef], file: RemoteFile) -> int:
    return min((ref.offset for ref in tensors.values()), default=file.size)


def _header(line: Line, repository: Repository, file: RemoteFile) -> dict[str, TensorRef]:
    url, path = repository.url(line.access.endpoint, file), Path(file.name)
    first = read_piece(line, url, file.size, 0, min(file.size, _FIRST_BYTES))
    end = 8 + header_length(path, first[:8], file.size)
    rest = read_piece(line, url, file.size, len(first), end) if end > len(first) else b""
    return parse_header(path, first[8:end] + rest, file.size)


def _config(line: Line, repository: Repository, file: RemoteFile) -> dict[str, Any]:
    if file.size > _LARGEST_CONFIG:
        text = f"{CONFIG} of {repository.repo} has {format_bytes(file.size)}."
        raise EngineError("model.bad_json", text, "Choose another repository.")
    try:
        values = json.loads(read_piece(line, repository.url(line.access.endpoint, file), file.size, 0, file.size))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise EngineError(
            "model.bad_json", f"{CONFIG} of {repository.repo} holds no JSON object.", "Choose another repository."
        )
    return values
