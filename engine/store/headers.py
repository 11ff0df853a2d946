"""A checkpoint on the Hub as data, from config.json and the headers of its weight files: some hundred KB of any model."""

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
from engine.store.web import Line, read_piece
from engine.units import MB, format_bytes

_FIRST_BYTES = 16 << 10  # holds the header of many shards
_AT_ONCE = 8
_LARGEST_CONFIG = 10 * MB


def read_remote(line: Line, repository: Repository, is_stopped: Callable[[], bool] = lambda: False) -> Checkpoint:
    """Its files are named, not there. Raises `EngineError` or `StoppedError`."""
    weights = [file for file in repository.files if file.name.endswith(".safetensors")]
    config = next(file for file in repository.files if file.name == CONFIG)

    def header(file: RemoteFile) -> dict[str, TensorRef]:
        return patiently(lambda: _header(line, repository, file), line, repository.repo, is_stopped)

    values = patiently(lambda: _config(line, repository, config), line, repository.repo, is_stopped)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        tensors = {name: ref for found in pool.map(header, weights) for name, ref in found.items()}
    return Checkpoint(Path(repository.repo), values, tensors)


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
