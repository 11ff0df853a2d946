"""Single rows of a table that stays on disk, and a cache of those used last. Knows bytes, not what the rows mean.

For tables that are only looked up, a few rows for each token: embeddings beside experts that need the RAM more, n-gram tables.
"""

import queue
from collections.abc import Sequence
from typing import Any

import torch

from engine.checkpoint.experts import Run
from engine.tiers.arena import BLOCK, align_up, aligned_memory
from engine.tiers.disk import DiskReader


class RowStore:
    """`table` holds rows of `row_bytes` end to end; `capacity` of them are in RAM. One thread calls it."""

    def __init__(self, reader: DiskReader, table: Run, row_bytes: int, capacity: int) -> None:
        assert table.nbytes % row_bytes == 0, f"{table.nbytes} bytes are no whole number of rows of {row_bytes}"
        self._reader, self._table, self._row_bytes = reader, table, row_bytes
        self.num_rows = table.nbytes // row_bytes
        self.capacity = min(capacity, self.num_rows)
        self.data = torch.zeros(self.capacity * row_bytes, dtype=torch.uint8)
        self._rows = self.data.view(self.capacity, row_bytes)
        self._stride = align_up(BLOCK - 1 + row_bytes)  # a row may begin anywhere in a block
        self._landing = aligned_memory(self.capacity * self._stride)
        self._places: dict[int, int] = {}  # of the rows in RAM, the least recently used first
        self._free = list(range(self.capacity - 1, -1, -1))
        self._landed: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def places(self, rows: Sequence[int]) -> tuple[list[int], int]:
        """Where these rows lie in `data`, counted in rows and valid until the next call, and the bytes read for it.

        At most `capacity` different ones. Raises `EngineError` where a read fails; the cache stays as it is then.
        """
        wanted = dict.fromkeys(rows)
        assert len(wanted) <= self.capacity, f"{len(wanted)} rows for a cache of {self.capacity}"
        for row in wanted:
            if row in self._places:
                self._places[row] = self._places.pop(row)
        absent = [row for row in wanted if row not in self._places]
        if absent:
            self._read(absent)
        return [self._places[row] for row in rows], len(absent) * self._row_bytes

    def _read(self, rows: list[int]) -> None:
        """Whatever was used longest ago goes; `places` has moved all that is wanted now to the other end."""
        while len(self._free) < len(rows):
            self._free.append(self._places.pop(next(iter(self._places))))
        starts = {}
        for index, row in enumerate(rows):
            assert 0 <= row < self.num_rows, f"row {row} of {self.num_rows}"
            run = Run(self._table.file, self._table.offset + row * self._row_bytes, self._row_bytes)
            starts[row] = index * self._stride + run.offset % BLOCK
            target = self._landing[index * self._stride : (index + 1) * self._stride]
            self._reader.submit([run], [0], target, row, self._landed)
        failure: Exception | None = None
        for _ in rows:
            row, _, error = self._landed.get()
            if error is not None:
                failure = error
                continue
            place = self._free.pop()
            start = starts[row]
            self._rows[place] = torch.frombuffer(self._landing, dtype=torch.uint8, count=self._row_bytes, offset=start)
            self._places[row] = place
        if failure is not None:
            raise failure
