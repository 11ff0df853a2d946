"""Rates of an invented computer, and a notebook that knows them: for plans and verdicts without a measurement."""

from dataclasses import replace
from pathlib import Path

from engine.card_rates import CardRates, Lane, LaneCosts
from engine.hardware.machine import Machine
from engine.knowledge import Notebook
from engine.plan.footprint import Footprint
from engine.rates import Rates
from engine.units import GB

RATES = Rates(
    ram_gbps=40.0, disk_gbps=3.0, fresh_gbps=2.0, expert_gbps=25.0, dense_gbps=30.0, kv_gbps=20.0, layer_seconds=2e-4,
    token_seconds=2e-3, first_seconds=1e-4, overlap=((0.0, 1.0), (0.5, 1.2), (1.0, 1.6), (3.0, 3.2)), attention_gmacs=80.0,
    experts_by_rows=((1.0, 25.0), (4.0, 20.0), (16.0, 6.0), (64.0, 2.0)),
    dense_by_tokens=((1.0, 30.0), (16.0, 14.0), (64.0, 4.5), (512.0, 0.5)), expert_bytes=10_000_000, seconds=1.0,
)  # fmt: skip
CARD = CardRates(
    vram_gbps=400.0, expert_gbps=250.0, dense_gbps=320.0, kv_gbps=200.0, layer_seconds=1.5e-4, resident_layer_seconds=1.2e-4, token_seconds=2e-3,
    attention_gmacs=5000.0, experts_by_rows=((1.0, 250.0), (16.0, 200.0), (64.0, 80.0)),
    dense_by_tokens=((1.0, 320.0), (64.0, 150.0), (512.0, 40.0)),
    lanes=LaneCosts(Lane(20e-6, 0.42e-3), Lane(60e-6, 0.4e-3), 0.25e-3), expert_bytes=10_000_000, seconds=1.0,
)  # fmt: skip
QWEN3_30B = Footprint(
    name="Qwen3-30B-A3B", architecture="qwen3_moe", weight_format="BF16", model_bytes=61 * GB, dense_bytes=3_100_000_000,
    dense_read_bytes=2_500_000_000, expert_bytes=9_437_184, slot_bytes=9_445_376, num_moe_layers=48, num_experts=128, top_k=8,
    num_layers=48, num_kv_heads=4, head_dim=128, hidden_size=2048, expert_size=768, vocab_size=151_936, max_context=40_960, looked_up_bytes=622_329_856,
)  # fmt: skip
FORMATS = ("BF16", "FP8", "MXFP4", "NVFP4", "F32", "INT4")


def notebook(data: Path, machine: Machine, folder: Path, formats: tuple[str, ...] = FORMATS) -> Notebook:
    """As after a bench of each format on the drive of `folder`."""
    book = Notebook(data, machine)
    for name in formats:
        book.note_rates(replace(QWEN3_30B, weight_format=name), folder, replace(RATES))
    return book
