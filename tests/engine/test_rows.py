"""Single rows of a table on disk: right bytes at any row size and place, and a cache that keeps what was used last."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.checkpoint.experts import Run
from engine.errors import EngineError
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore


@pytest.fixture
def reader() -> Iterator[DiskReader]:
    reader = DiskReader()
    yield reader
    reader.close()


@pytest.mark.parametrize(("row_bytes", "offset"), [(160, 0), (264, 777), (4096, 4095), (10_000, 1)])
def test_rows_arrive_whatever_was_asked_for_before(reader: DiskReader, tmp_path: Path, row_bytes: int, offset: int) -> None:
    file, num_rows, draw = tmp_path / "table", 97, random.Random(row_bytes)
    data = os.urandom(offset + num_rows * row_bytes)
    file.write_bytes(data)
    store = RowStore(reader, Run(file, offset, num_rows * row_bytes), row_bytes, capacity=20)
    for _ in range(60):
        rows = [draw.choice((draw.randrange(num_rows), draw.randrange(10), num_rows - 1)) for _ in range(draw.randrange(1, 20))]
        places, _ = store.places(rows)
        for row, place in zip(rows, places, strict=True):
            start = offset + row * row_bytes
            assert store.data[place * row_bytes : (place + 1) * row_bytes].numpy().tobytes() == data[start : start + row_bytes]


def test_a_row_is_read_once_while_it_is_used(reader: DiskReader, tmp_path: Path) -> None:
    (tmp_path / "table").write_bytes(bytes(100 * 64))
    store = RowStore(reader, Run(tmp_path / "table", 0, 6400), 64, capacity=4)
    assert store.places([1, 2, 1, 3])[1] == 3 * 64
    assert store.places([1, 1])[1] == 0
    assert store.places([4, 5, 6])[1] == 3 * 64, "two of the four places were free or had gone unused longest"
    assert store.places([1])[1] == 0, "used after 2 and 3"


def test_a_failed_read_is_named_and_the_store_goes_on(reader: DiskReader, tmp_path: Path) -> None:
    file = tmp_path / "table"
    file.write_bytes(bytes(range(100)) * 100)
    store = RowStore(reader, Run(file, 0, 10_000), 100, capacity=4)
    store.places([0])
    os.truncate(file, 5000)
    with pytest.raises(EngineError, match=r"table on .* ends"):
        store.places([0, 80, 1])
    for rows in ([0, 1, 2, 3], [3, 4, 5, 6]):
        assert [store.data[place * 100 + 7].item() for place in store.places(rows)[0]] == [7] * 4
