"""Rates of an invented computer, and a notebook that knows them: for plans and verdicts without a measurement."""

from dataclasses import replace
from pathlib import Path

from engine.hardware.machine import Machine
from engine.knowledge import Notebook
from engine.rates import Rates

RATES = Rates(
    ram_gbps=40.0, disk_gbps=3.0, fresh_gbps=2.0, expert_gbps=25.0, dense_gbps=30.0, kv_gbps=20.0, layer_seconds=2e-4,
    token_seconds=2e-3, first_seconds=1e-4, overlap=((0.0, 1.0), (0.5, 1.2), (1.0, 1.6), (3.0, 3.2)), attention_gmacs=80.0,
    experts_by_rows=((1.0, 25.0), (4.0, 20.0), (16.0, 6.0), (64.0, 2.0)),
    dense_by_tokens=((1.0, 30.0), (16.0, 14.0), (64.0, 4.5), (512.0, 0.5)), expert_bytes=10_000_000, seconds=1.0,
)  # fmt: skip
FORMATS = ("BF16", "FP8", "MXFP4", "NVFP4", "F32", "INT4")


def notebook(data: Path, machine: Machine, folder: Path, formats: tuple[str, ...] = FORMATS) -> Notebook:
    """As after a bench of each format on the drive of `folder`."""
    book = Notebook(data, machine)
    for name in formats:
        book.note_rates(name, folder, replace(RATES))
    return book
