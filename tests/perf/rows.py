"""Rows of a table on disk, a few for each token: `python -m tests.perf.rows FILE [--rows 16 48] [--bytes 160 264] [--tokens 200]`.

FILE is any large file on the drive in question. Prints milliseconds per token from an empty cache, and with half of the rows
repeated from the 50 tokens before, as n-grams of a text repeat.
"""

import argparse
import random
import time
from itertools import product
from pathlib import Path
from statistics import median

from engine.checkpoint.experts import Run
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore

_CAPACITY = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", nargs="+", type=int, default=[16, 48])
    parser.add_argument("--bytes", nargs="+", type=int, default=[160, 264])
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    size = options.file.stat().st_size
    print("rows  bytes  all new, ms  half repeated, ms")
    for rows, row_bytes in product(options.rows, options.bytes):
        table = Run(options.file, 0, size // row_bytes * row_bytes)
        times = [_milliseconds(table, row_bytes, rows, options.tokens, repeated) for repeated in (0, rows // 2)]
        print(f"{rows:4}  {row_bytes:5}  {times[0]:11.2f}  {times[1]:17.2f}", flush=True)


def _milliseconds(table: Run, row_bytes: int, rows: int, tokens: int, repeated: int) -> float:
    """Median over tokens."""
    reader, draw = DiskReader(), random.Random(rows)
    store, recent, seconds = RowStore(reader, table, row_bytes, _CAPACITY), list[int](), []
    for _ in range(tokens):
        again = draw.sample(recent, min(repeated, len(recent)))
        new = [draw.randrange(store.num_rows) for _ in range(rows - len(again))]
        begun = time.perf_counter()
        store.places([*again, *new])
        seconds.append(time.perf_counter() - begun)
        recent = [*recent, *new][-50 * rows :]
    reader.close()
    return median(seconds) * 1e3


if __name__ == "__main__":
    main()
