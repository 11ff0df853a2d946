"""The table of how far each architecture is from transformers: python -m tests.golden.parity_table [ROW ...]"""

import sys
import tempfile
import warnings
from pathlib import Path

from engine.kernels.native import Native
from engine.kernels.reference import Reference
from tests.golden.parity import ROWS, make_golden, measure


def main(names: list[str]) -> None:
    """Largest relative differences over all layers and positions, fp32 on the CPU."""
    warnings.simplefilter("ignore")  # the reference warns about its own affairs
    print("| architecture | after each layer | prompt | token by token | after a rewind | experts from disk | native kernels |")
    print("|---|---|---|---|---|---|---|")
    for name in names or ROWS:
        with tempfile.TemporaryDirectory() as folder:
            golden = make_golden(name, Path(folder))
            own, disk = measure(golden, Reference()), measure(golden, Reference(), slots=1)
            native = measure(golden, Native(2, fast=False))
        cells = (own.stream, own.prefill, own.decode, own.rewind, disk.largest, native.largest)
        print(f"| {name} | {' | '.join(f'{value:.0e}' for value in cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
