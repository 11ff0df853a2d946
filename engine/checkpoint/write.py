"""Writes a safetensors file in one forward pass. Knows the format only: no tensor library, no model, no numbers.

The format (https://github.com/huggingface/safetensors, README "Format"): a little-endian u64 with the length of a JSON
header, the header, then the tensors' bytes without holes. Spaces may follow the JSON, and they are what aligns the data here.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.safetensors import DTYPE_BITS

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor before its bytes exist. `dtype` is the format's own name, such as BF16."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def write_safetensors(
    path: Path,
    tensors: Sequence[TensorSpec],
    produce: Callable[[str], Bytes],
    metadata: Mapping[str, str] | None = None,
    align: int = 4096,
) -> int:
    """Write `tensors` in the given order and return the file's size in bytes.

    `produce(name)` is called once per tensor, in order, and its bytes are written before the next call, so that one tensor is
    in memory at a time. The data section starts at a multiple of `align`; the format allows no holes to align later tensors.
    The file is on the disk when this returns. Raises OSError as the operating system does (a full disk among them).
    """
    header = _header(tensors, metadata or {"format": "pt"}, align)
    with path.open("wb") as file:
        file.write(header)
        for spec in tensors:
            data = memoryview(produce(spec.name)).cast("B")
            assert len(data) == spec.num_bytes, f"{spec.name}: {len(data)} bytes produced, {spec.num_bytes} declared"
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return file.tell()


def _header(tensors: Sequence[TensorSpec], metadata: Mapping[str, str], align: int) -> bytes:
    assert align % 8 == 0, f"safetensors wants the header aligned to 8 bytes, not {align}"
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for spec in tensors:
        assert spec.name not in entries, f"{spec.name} is declared twice"
        end = offset + spec.num_bytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padding = -(8 + len(text)) % align
    return (len(text) + padding).to_bytes(8, "little") + text + b" " * padding
