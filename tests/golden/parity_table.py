"""The table of how far each architecture is from transformers: python -m tests.golden.parity_table [ROW ...]

`--encodings` has one of the published encodings instead, on dequantised weights, and of the kernels that leave activations
wide; `--kv` one of the types that keys and values are kept in.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

from engine.config import KvType
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from tests.golden.parity import ENCODED, ROWS, differences, differences_in_bf16, make_golden, measure


def main(names: list[str]) -> None:
    """Largest relative differences over all layers and positions, fp32 on the CPU."""
    print("| architecture | after each layer | prompt | token by token | after a rewind | experts from disk | native kernels |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            golden = make_golden(name, Path(folder))
            own, disk = measure(golden, Reference()), measure(golden, Reference(), slots=1)
            native = measure(golden, Native(2, "portable" if golden.row.encoding else "best", fast=False))
        cells = (own.stream, own.prefill, own.decode, own.rewind, disk.largest, native.largest)
        print(f"| {name} | {' | '.join(f'{value:.0e}' for value in cells)} |", flush=True)


def kv_types(names: list[str]) -> None:
    """Differences in the middle of all positions, token by token by the native kernels, beside those of the reference in bf16."""
    print(f"| architecture | {' | '.join(KvType)} | the reference in bf16 |")
    print("|---|---|---|---|---|")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            golden = make_golden(name, Path(folder))
            found = [differences(golden, Native(2, fast=False), kv_type).median() for kv_type in KvType]
        cells = (*found, differences_in_bf16(golden).median())
        print(f"| {name} | {' | '.join(f'{float(value):.0e}' for value in cells)} |", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the reference warns about its own affairs
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("rows", nargs="*")
    arguments.add_argument("--encodings", action="store_true")
    arguments.add_argument("--kv", action="store_true")
    options = arguments.parse_args()
    if options.kv:
        kv_types(options.rows or list(ROWS))
    else:
        main(options.rows or list(ENCODED if options.encodings else ROWS))
