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
    """Rates of RAM, disk and the expert kernels, a quarter of a second each."""
    read, disk_gbps = _read_experts(experts, reader)
    return Rates(
        compute_gbps=_compute_gbps(experts, form, math, read, kernels),
        layer_seconds=_layer_seconds(),
        ceilings={Link.RAM: _ram_gbps(kernels), Link.DISK: disk_gbps},
    )


def _read_experts(experts: ExpertMap, reader: DiskReader) -> tuple[memoryview, float]:
    """Random experts into a few buffers, several in flight. Returns expert 0 of the first layer for the next measurement."""
    stride = slot_stride(experts)
    memory = aligned_memory(stride * _IN_FLIGHT)
    buffers = [memory[index * stride : (index + 1) * stride] for index in range(_IN_FLIGHT)]
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    draw = random.Random(0)

    def submit(buffer: int) -> None:
        expert = draw.choice(draw.choice(list(experts.ranges.values())))
        reader.submit(expert.runs, run_bases(expert), buffers[buffer], buffer, done)

    begun, count = time.perf_counter(), 0
    for buffer in range(_IN_FLIGHT):
        submit(buffer)
    in_flight = _IN_FLIGHT
    while in_flight:
        buffer, _, error = done.get()
        in_flight -= 1
        if error is not None:
            raise error
        count += 1
        if time.perf_counter() - begun < _SECONDS:
            submit(buffer)
            in_flight += 1
    gbps = count * experts.expert_bytes / (time.perf_counter() - begun) / 1e9
    reader.read(experts.sample.runs, run_bases(experts.sample), buffers[0])
    return buffers[0], gbps


def _compute_gbps(experts: ExpertMap, form: ExpertFormat, math: ExpertMath, read: memoryview, kernels: Kernels) -> float:
    """Weight bytes per second through one token's experts, over more memory than the caches hold."""
    stride = len(read)
    copies = max(_TOP_K, _CACHE_BYTES // stride)
    memory = torch.frombuffer(aligned_memory(copies * stride), dtype=torch.uint8)
    small = {ref.name: torch.zeros(ref.nbytes, dtype=torch.uint8) for _, _, ref in experts.sample.small}
    for name in small:
        small[name][:] = 0x3F  # some positive number in every type of scale
    binder, table = ExpertBinder(experts, form, small), ExpertTable(copies)
    for copy in range(copies):
        slot = memory[copy * stride : (copy + 1) * stride]
        slot[:] = torch.frombuffer(read, dtype=torch.uint8)
        table.set(copy, *binder.bind(experts.layers[0], 0, slot))
    x, weights = torch.randn(1, form.shapes[0][1]), torch.ones(1, _TOP_K)
    begun, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < _SECONDS:
        slots = torch.arange(count, count + _TOP_K, dtype=torch.int32)[None] % copies
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


def _ram_gbps(kernels: Kernels) -> float:
    """Read ceiling of DRAM with all threads: the best pass, since any disturbance only lowers it."""
    memory = torch.zeros(_CACHE_BYTES, dtype=torch.uint8)
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _SECONDS:
        entered = time.perf_counter()
        kernels.read(memory)
        best = min(best, time.perf_counter() - entered)
    return memory.nbytes / best / 1e9
