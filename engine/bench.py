"""Measures what this machine gives, with the model's own expert size and the engine's own readers and kernels."""

import queue
import random
import time
from typing import Any

import torch

from engine.checkpoint.experts import ExpertMap
from engine.experts.bind import ExpertBinder, ExpertFormat
from engine.hardware.machine import Rates
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import ExpertMath
from engine.meter import Link
from engine.tiers.arena import aligned_memory, run_bases, slot_stride
from engine.tiers.disk import DiskReader

_SECONDS = 0.25  # each; start-up must not be felt
_CACHE_BYTES = 128 << 20  # beyond any desktop's last-level cache, so that RAM is what is measured
_IN_FLIGHT = 4
_TOP_K = 8  # experts in one call, as a token's are


def measure(experts: ExpertMap, form: ExpertFormat, math: ExpertMath, reader: DiskReader, kernels: Kernels) -> Rates:
    """Rates of RAM, disk and the expert kernels, about a quarter of a second each."""
    memory, drawn, disk_gbps = _read_experts(experts, reader)
    return Rates(
        compute_gbps=_compute_gbps(experts, form, math, memory, drawn, kernels),
        layer_seconds=_layer_seconds(),
        ceilings={Link.RAM: _ram_gbps(memory, kernels), Link.DISK: disk_gbps},
    )


def _read_experts(experts: ExpertMap, reader: DiskReader) -> tuple[torch.Tensor, list[tuple[int, int]], float]:
    """Random experts, several in flight, into more memory than the caches hold: uint8 [slots, stride], (layer, expert) by slot,
    and GB/s. All of it is read at least once: equal pages may be one page to the machine's host, and look faster than RAM."""
    stride, draw = slot_stride(experts), random.Random(0)
    count = max(_TOP_K, _CACHE_BYTES // stride)
    memory = aligned_memory(count * stride)
    drawn = [(layer, draw.randrange(experts.num_experts)) for layer in draw.choices(experts.layers, k=count)]
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    begun, started, moved = time.perf_counter(), 0, 0

    def submit() -> bool:
        nonlocal started
        if started >= count and time.perf_counter() - begun >= _SECONDS:
            return False
        slot = started % count
        layer, expert = drawn[slot]
        where = experts.ranges[layer][expert]
        reader.submit(where.runs, run_bases(where), memory[slot * stride : (slot + 1) * stride], None, done)
        started += 1
        return True

    in_flight = sum(submit() for _ in range(min(_IN_FLIGHT, count)))
    while in_flight:
        _, nbytes, error = done.get()
        in_flight -= 1
        if error is not None:
            raise error
        moved += nbytes
        in_flight += submit()
    gbps = moved / (time.perf_counter() - begun) / 1e9
    return torch.frombuffer(memory, dtype=torch.uint8).view(count, stride), drawn, gbps


def _compute_gbps(
    experts: ExpertMap,
    form: ExpertFormat,
    math: ExpertMath,
    memory: torch.Tensor,
    drawn: list[tuple[int, int]],
    kernels: Kernels,
) -> float:
    """Weight bytes per second through the experts of one token after the other."""
    small = {ref.name: ref for layer, expert in drawn for _, _, ref in experts.ranges[layer][expert].small}
    # Some positive number in every type of scale: what they are is not measured.
    binder = ExpertBinder(
        experts, form, {name: torch.full((ref.nbytes,), 0x3F, dtype=torch.uint8) for name, ref in small.items()}
    )
    table = ExpertTable(len(drawn))
    for slot, (layer, expert) in enumerate(drawn):
        binder.bind_slot(layer, expert, memory[slot], table, slot, kernels)
    x, weights = torch.randn(1, form.shapes[0][1]), torch.ones(1, _TOP_K)
    begun, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < _SECONDS:
        slots = torch.arange(count, count + _TOP_K, dtype=torch.int32)[None] % len(drawn)
        kernels.moe(table, x, slots, None, weights, activation=math.activation, alpha=math.alpha, limit=math.limit)
        count += _TOP_K
    return count * experts.expert_bytes / elapsed / 1e9


def _layer_seconds() -> float:
    """The fixed cost of a decode layer: about thirty small tensor operations, whatever the model's size."""
    small = torch.randn(1, 64)
    begun, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < _SECONDS / 5:
        for _ in range(30):
            small.add(1.0)
        count += 1
    return elapsed / count


def _ram_gbps(memory: torch.Tensor, kernels: Kernels) -> float:
    """Read ceiling of DRAM with all threads: the best pass, since any disturbance only lowers it."""
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _SECONDS:
        entered = time.perf_counter()
        kernels.read(memory)
        best = min(best, time.perf_counter() - entered)
    return memory.nbytes / best / 1e9
