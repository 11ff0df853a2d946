"""Measures what this machine gives, with the model's own expert size and the engine's own readers and kernels."""

import queue
import random
import time
from typing import Any

import torch

from engine.checkpoint.experts import ExpertMap, ExpertNames
from engine.experts.run import bind
from engine.hardware.machine import Rates
from engine.kernels.reference import Reference
from engine.meter import Link
from engine.tiers.arena import SlotLayout, aligned_memory
from engine.tiers.disk import DiskReader

_SECONDS = 0.25  # each; start-up must not be felt
_CACHE_BYTES = 128 << 20  # beyond any desktop's last-level cache, so that RAM is what is measured
_IN_FLIGHT = 4


def measure(experts: ExpertMap, names: ExpertNames, reader: DiskReader, kernels: Reference) -> Rates:
    """Rates of RAM, disk and the expert kernels, a quarter of a second each."""
    buffers, disk_gbps = _read_experts(experts, reader)
    return Rates(
        compute_gbps=_compute_gbps(experts, names, buffers, kernels),
        layer_seconds=_layer_seconds(),
        ceilings={Link.RAM: _ram_gbps(), Link.DISK: disk_gbps},
    )


def _read_experts(experts: ExpertMap, reader: DiskReader) -> tuple[list[memoryview], float]:
    """Random experts into a few buffers, several in flight; the buffers keep real weights for the next measurement."""
    layout = SlotLayout.for_expert(experts.sample)
    memory = aligned_memory(layout.stride * _IN_FLIGHT)
    buffers = [memory[index * layout.stride : (index + 1) * layout.stride] for index in range(_IN_FLIGHT)]
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    draw = random.Random(0)

    def submit(buffer: int) -> None:
        expert = draw.choice(draw.choice(list(experts.ranges.values())))
        reader.submit(expert.runs, layout.run_base, buffers[buffer], buffer, done)

    begun, count = time.perf_counter(), 0
    for buffer in range(_IN_FLIGHT):
        submit(buffer)
    in_flight = _IN_FLIGHT
    while in_flight:
        buffer, error = done.get()
        in_flight -= 1
        if error is not None:
            raise error
        count += 1
        if time.perf_counter() - begun < _SECONDS:
            submit(buffer)
            in_flight += 1
    return buffers, count * experts.expert_bytes / (time.perf_counter() - begun) / 1e9


def _compute_gbps(experts: ExpertMap, names: ExpertNames, buffers: list[memoryview], kernels: Reference) -> float:
    """Weight bytes per second through one token's expert products, over more memory than the caches hold."""
    expert, layout = experts.sample, SlotLayout.for_expert(experts.sample)
    stride = len(buffers[0])
    copies = max(len(buffers), _CACHE_BYTES // stride)
    memory = torch.frombuffer(aligned_memory(copies * stride), dtype=torch.uint8)
    for copy in range(copies):
        memory[copy * stride : (copy + 1) * stride] = torch.frombuffer(buffers[copy % len(buffers)], dtype=torch.uint8)
    x = torch.randn(1, bind(expert, names, layout, memory)[0].shape[1])
    begun, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - begun) < _SECONDS:
        slot = memory[count % copies * stride :]
        gate, up, down = bind(expert, names, layout, slot)
        kernels.swiglu(x, gate, up, down)
        count += 1
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


def _ram_gbps() -> float:
    """Read ceiling of DRAM with all threads: the best pass, since any disturbance only lowers it."""
    memory = torch.zeros(_CACHE_BYTES // 4)
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _SECONDS:
        entered = time.perf_counter()
        memory.sum()
        best = min(best, time.perf_counter() - entered)
    return memory.nbytes / best / 1e9
