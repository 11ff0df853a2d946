"""The writer against the reference reader, `safetensors` itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from engine.checkpoint.write import TensorSpec, write_safetensors

RNG = np.random.default_rng(7)
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "a.weight": RNG.standard_normal((3, 5)).astype(np.float32),
    "größe": RNG.integers(0, 255, (7,), dtype=np.uint8),
    "empty": np.zeros((0, 4), dtype=np.float16),
    "scalar": np.array(3.5, dtype=np.float64),
    "z": RNG.standard_normal((64, 33)).astype(np.float16),
}
DTYPES = {"float32": "F32", "uint8": "U8", "float16": "F16", "float64": "F64"}
SPECS = [TensorSpec(name, DTYPES[array.dtype.name], array.shape) for name, array in ARRAYS.items()]


def _write(path: Path, align: int = 4096) -> int:
    return write_safetensors(path, SPECS, lambda name: ARRAYS[name].tobytes(), {"format": "pt", "made": "here"}, align)


def test_the_reference_reader_sees_the_same_arrays(tmp_path: Path) -> None:
    size = _write(tmp_path / "x.safetensors")
    assert size == (tmp_path / "x.safetensors").stat().st_size
    with safe_open(tmp_path / "x.safetensors", framework="np") as file:
        assert set(file.keys()) == set(ARRAYS)
        assert file.metadata() == {"format": "pt", "made": "here"}
        for name, array in ARRAYS.items():
            read = file.get_tensor(name)
            assert read.dtype == array.dtype
            np.testing.assert_array_equal(read, array)


@pytest.mark.parametrize("align", [8, 512, 4096, 1 << 16])
def test_data_starts_aligned_and_has_no_holes(tmp_path: Path, align: int) -> None:
    _write(tmp_path / "x.safetensors", align)
    raw = (tmp_path / "x.safetensors").read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    assert (8 + header_bytes) % align == 0
    header = json.loads(raw[8 : 8 + header_bytes])
    assert 8 + header_bytes + sum(array.nbytes for array in ARRAYS.values()) == len(raw)
    start, end = header["z"]["data_offsets"]
    assert raw[8 + header_bytes :][start:end] == ARRAYS["z"].tobytes()


def test_each_tensor_is_asked_for_once_and_in_order(tmp_path: Path) -> None:
    asked: list[str] = []

    def produce(name: str) -> bytes:
        asked.append(name)
        return ARRAYS[name].tobytes()

    write_safetensors(tmp_path / "x.safetensors", SPECS, produce)
    assert asked == list(ARRAYS)


def test_a_wrong_length_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"a\.weight: 3 bytes produced, 60 declared"):
        write_safetensors(tmp_path / "x.safetensors", SPECS, lambda name: b"abc")
