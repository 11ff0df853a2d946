"""Reads the header of one safetensors file. Knows the format's rules and no tensor library; never touches the weights.

Format: 8 bytes little-endian header length, that many bytes of JSON, then the tensors' bytes. Source: the safetensors README.
"""

import itertools
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.units import MB, format_bytes

DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip
_MAX_HEADER = 100 * MB  # the format's own limit
_LARGEST = 2**62
_LONGEST_NAME = 1000  # characters of a tensor's name: the numbers in it are still read in no time
_DAMAGED = "Download the model again, or check the drive; the file was left as it is."


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Where one tensor's bytes lie: `nbytes` at absolute `offset` of `file`."""

    name: str
    file: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def read_header(file: Path) -> dict[str, TensorRef]:
    """All tensors of a file by name. Raises `EngineError` with the file's name and numbers for whatever breaks the format."""
    try:
        with file.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            length = header_length(file, stream.read(8), size)
            text = stream.read(length)
    except OSError as error:
        raise _unreadable(file, error) from error
    return parse_header(file, text, size)


def parse_header(file: Path, text: bytes, size: int) -> dict[str, TensorRef]:
    """The same from the header's JSON, for a `file` of `size` bytes that need not be here."""
    try:
        header = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(file, "its header is not JSON, or names something twice") from error
    if not isinstance(header, dict):
        raise _damaged(file, "its header is not a table of tensors")
    header.pop("__metadata__", None)
    refs = {name: _tensor(file, name, entry, 8 + len(text), size) for name, entry in header.items()}
    _check_no_overlap(file, list(refs.values()))
    return refs


def header_length(file: Path, prefix: bytes, size: int) -> int:
    """Bytes of JSON after the first 8, `prefix`. Raises `EngineError` where those begin no safetensors file."""
    if len(prefix) < 8:
        raise _damaged(file, f"it has {size} bytes and no header")
    length = int.from_bytes(prefix, "little")
    if prefix[:4] == b"GGUF":
        raise EngineError(
            "checkpoint.not_safetensors", f"{file.name} is a GGUF file, not safetensors.", "Stoker reads safetensors."
        )
    if length > _MAX_HEADER:
        raise _damaged(file, f"its first bytes are no safetensors header (length {length})")
    if 8 + length > size:
        raise _damaged(file, f"its header needs {format_bytes(8 + length)} and the file has {format_bytes(size)}")
    return length


def _tensor(file: Path, name: str, entry: Any, data_start: int, size: int) -> TensorRef:
    if len(name) > _LONGEST_NAME:
        raise _damaged(file, f"a tensor's name has {len(name)} characters and begins with {name[:40]}")
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(file, f"the entry of tensor {name} is incomplete") from error
    if not all(type(number) is int and 0 <= number <= _LARGEST for number in (begin, end, *shape)):
        raise _damaged(file, f"tensor {name} has impossible offsets or shape")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise EngineError(
            "checkpoint.dtype",
            f"Tensor {name} in {file.name} has the unknown type {dtype!r}.",
            "Update Stoker, or get another format.",
        )
    expected = math.prod(shape) * DTYPE_BITS[dtype] // 8
    if end - begin != expected:
        raise _damaged(file, f"tensor {name} takes {end - begin} bytes where {dtype}{list(shape)} needs {expected}")
    if data_start + end > size:
        raise _damaged(file, f"tensor {name} ends at {format_bytes(data_start + end)}, the file at {format_bytes(size)}")
    return TensorRef(name, file, data_start + begin, end - begin, dtype, shape)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _check_no_overlap(file: Path, refs: list[TensorRef]) -> None:
    refs.sort(key=lambda ref: (ref.offset, ref.nbytes))
    for before, after in itertools.pairwise(refs):
        if before.offset + before.nbytes > after.offset:
            raise _damaged(file, f"tensors {before.name} and {after.name} overlap")


def _damaged(file: Path, reason: str) -> EngineError:
    return EngineError("checkpoint.damaged", f"{file.name} is damaged or cut short: {reason}.", _DAMAGED)


def _unreadable(file: Path, error: OSError) -> EngineError:
    return EngineError(
        "checkpoint.unreadable",
        f"{file.name} cannot be read: {error.strerror or error}.",
        "Check that the drive is connected and readable.",
    )
