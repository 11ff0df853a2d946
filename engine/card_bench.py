"""Measures what a graphics card gives, with the model's own expert size and the engine's own kernels, layers and links."""

import time
from collections.abc import Callable
from statistics import median

from engine.bench_pieces import (
    BATCHES,
    ROWS,
    Clock,
    attention_rates,
    dense_by_tokens,
    dense_gbps,
    expert_gbps,
    layer_seconds_by_bytes,
    on_card,
    read_seconds,
    sampler_seconds,
)
from engine.card_rates import CardRates
from engine.devices import measure_lanes
from engine.errors import EngineError
from engine.experts.device_lanes import DeviceLanes
from engine.experts.vram import Device
from engine.kernels.kernels import Kernels
from engine.rehearsal import Rehearsal, Subject, layer_matrices
from engine.tiers.disk import DiskReader

SECONDS = 3.0
PARTS = 1 + 1 + len(ROWS) + 2 + len(BATCHES) + 4
_MANY = 4  # experts of a layer-step, beside a step of one


def measure_card(
    subject: Subject,
    reader: DiskReader,
    kernels: Kernels,
    card: Device,
    memory_limit: int,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CardRates:
    """In about so many seconds, once the kernels are compiled. At most `memory_limit` bytes of RAM are taken, and given back.
    `progress` is in parts of the whole.

    `kernels` are the CPU's, for the lane that computes in RAM. Raises `EngineError`, `DeviceLost` and `Stopped`.
    """
    progress(0, PARTS)  # compiling may take longer than all the rest
    rehearsal, place = Rehearsal(subject, reader, kernels, memory_limit, card=card), on_card(card)
    lanes, top_k = rehearsal.lanes, subject.footprint.top_k
    assert isinstance(lanes, DeviceLanes), "a rehearsal with a card"
    tier = lanes.tiers[0]
    held = [(layer, expert) for layer in subject.experts.layers[: rehearsal.num_moe_layers] for expert in range(top_k)]
    slots = [slot for expert in held if (slot := tier.cache.lookup(*expert)) is not None]
    if len(slots) < top_k:
        raise EngineError("bench.memory", f"{card.accelerator.name} has no room to be measured.", "Close what uses it.")
    matrices = layer_matrices(subject.dense, rehearsal.weights, rehearsal.num_layers)
    rehearsal.decode(0.0, 0.0)  # kernels are compiled when they are first used
    rehearsal.prompt(BATCHES[0], 0.0)
    expert_gbps(subject, tier.table, slots, top_k, 1, place, 0.0)
    clock = Clock(seconds, PARTS, progress, should_stop)
    by_rows = tuple((float(rows), expert_gbps(subject, tier.table, slots, 8, rows, place, clock.part())) for rows in ROWS)
    kv_gbps, gmacs = attention_rates(subject.footprint, place, clock.part)
    prompts = [rehearsal.prompt(count, clock.part()) for count in BATCHES]
    passes = read_seconds(rehearsal.memory, place, clock.part())
    of_experts = expert_gbps(subject, tier.table, slots, top_k, 1, place, clock.part())
    of_dense = dense_gbps(matrices, place, clock.part())
    outside = median(rehearsal.around(clock.part() / 2))
    layers, resident = (
        max(0.0, median(seconds) - outside) / rehearsal.num_layers
        for seconds in (rehearsal.decode(0.0, clock.part()).seconds, rehearsal.resident(clock.part()))
    )
    costs = measure_lanes(lanes, rehearsal.runner.first_slots(_MANY))
    by_bytes = layer_seconds_by_bytes(subject, rehearsal, of_dense, of_experts)
    head = subject.footprint.head_bytes / of_dense / 1e9
    token_seconds = max(0.0, outside - head) + sampler_seconds(subject.footprint.vocab_size)
    return CardRates(
        vram_gbps=max(rehearsal.memory.nbytes / median(passes) / 1e9, of_experts, of_dense),
        expert_gbps=of_experts, dense_gbps=of_dense, kv_gbps=kv_gbps,
        layer_seconds=max(0.0, layers - by_bytes),
        resident_layer_seconds=max(0.0, resident - by_bytes), token_seconds=token_seconds, attention_gmacs=gmacs,
        experts_by_rows=((1.0, of_experts), *by_rows),
        dense_by_tokens=dense_by_tokens(subject, rehearsal, of_dense, prompts, outside),
        lanes=costs,
        expert_bytes=subject.experts.expert_bytes, seconds=time.time(),
    )  # fmt: skip
