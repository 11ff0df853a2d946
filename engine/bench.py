"""Measures what this machine gives, with the model's own expert size and the engine's own readers, kernels and layers."""

import queue
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from engine.bench_pieces import (
    BATCHES,
    ROWS,
    Clock,
    attention_rates,
    dense_by_tokens,
    dense_gbps,
    expert_gbps,
    layer_seconds_by_bytes,
    on_cpu,
    read_seconds,
    sampler_seconds,
)
from engine.checkpoint.experts import ExpertMap
from engine.experts.bind import ExpertBinder
from engine.experts.policy import Expert
from engine.experts.table import SlotTable
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.rates import Curve, Rates
from engine.rehearsal import RECALL, Rehearsal, Steps, Subject, drawn_memory, layer_matrices, small_parts
from engine.tiers.arena import RamArena, run_bases, slot_stride
from engine.tiers.disk import DiskReader

SECONDS, SHORT_SECONDS = 8.0, 3.0  # before a load; where nobody keeps the result
_CACHE_BYTES = 128 << 20  # beyond most desktops' last-level cache, so that RAM is what is measured
_IN_FLIGHT = 8
_MISS_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_ROUNDS = 3  # so that a mood of the computer falls on all of it
_LAST_LEVEL = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")  # such as 266240K
_LEAST_SECONDS = 1e-6  # of a token's layers: below, the clock saw nothing
_FIXED_PARTS = 1 + len(ROWS) + 2 + len(BATCHES)
_ROUND_LEFT = 0.8  # of the last round's time, for another one
_ROUND_PARTS = 4 + len(_MISS_SHARES)
_PARTS = _FIXED_PARTS + _ROUNDS * _ROUND_PARTS


def measure(
    subject: Subject,
    reader: DiskReader,
    kernels: Kernels,
    memory_limit: int,
    seconds: float = SECONDS,
    progress: Callable[[int, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
    recall: float = RECALL,
) -> Rates:
    """In that many seconds; a machine so slow that the least work takes longer does it once. `progress` is in parts of the
    whole, of which some may be left out.

    At most `memory_limit` bytes are taken, and given back. `recall` is the share of guesses that the next layer asks for.
    Raises `EngineError` and `Stopped`.
    """
    clock, cpu = Clock(seconds, _PARTS, progress, should_stop), on_cpu(kernels)
    arena, drawn = _drawn_experts(subject)
    fresh_gbps, disk_gbps = _disk_gbps(subject.experts, arena, drawn, reader, clock.part())
    table, first_seconds = _bound(subject, arena, drawn, kernels)
    by_rows = tuple((float(rows), expert_gbps(subject, table, range(len(table)), 8, rows, cpu, clock.part())) for rows in ROWS)
    kv_gbps, gmacs = attention_rates(subject.footprint, cpu, clock.part)
    rehearsal = Rehearsal(subject, reader, kernels, memory_limit, recall)
    matrices = layer_matrices(subject.dense, rehearsal.weights, rehearsal.num_layers)
    prompts = [rehearsal.prompt(count, clock.part()) for count in BATCHES]
    memory = _beyond_caches(rehearsal.memory, memory_limit)
    passes, experts, dense, around, decoded = [], [], [], [], [_Pool() for _ in _MISS_SHARES]
    for _ in _rounds(clock):
        passes += read_seconds(memory, cpu, clock.part())
        experts.append(expert_gbps(subject, table, range(len(table)), subject.footprint.top_k, 1, cpu, clock.part()))
        dense.append(dense_gbps(matrices, cpu, clock.part()))
        around += rehearsal.around(clock.part() / 2)
        rehearsal.begin()
        for pool, share in zip(decoded, _MISS_SHARES, strict=True):
            pool.add(rehearsal.decode(share, clock.part()))
    outside = median(around)
    of_experts, of_dense = median(experts), median(dense)
    layers = [max(_LEAST_SECONDS, pool.seconds - outside) / rehearsal.num_layers for pool in decoded]
    by_bytes = layer_seconds_by_bytes(subject, rehearsal, of_dense, of_experts)
    faster = max(1.0, by_bytes / layers[0])  # than the kernels by themselves, on a computer that changes within seconds
    head_seconds = subject.footprint.head_bytes / of_dense / 1e9
    missed = [pool.misses / rehearsal.num_layers * subject.experts.expert_bytes / disk_gbps / 1e9 for pool in decoded]
    return Rates(
        ram_gbps=memory.nbytes / median(passes) / 1e9,
        disk_gbps=disk_gbps, fresh_gbps=min(fresh_gbps, disk_gbps),
        expert_gbps=of_experts * faster, dense_gbps=of_dense * faster, kv_gbps=kv_gbps,
        layer_seconds=max(0.0, layers[0] - by_bytes),
        token_seconds=max(0.0, outside - head_seconds) + sampler_seconds(subject.footprint.vocab_size),
        first_seconds=first_seconds, overlap=_overlap(layers, missed), attention_gmacs=gmacs,
        experts_by_rows=((1.0, of_experts), *by_rows),
        dense_by_tokens=dense_by_tokens(subject, rehearsal, of_dense, prompts, outside),
        expert_bytes=subject.experts.expert_bytes, seconds=time.time(),
    )  # fmt: skip


def _beyond_caches(memory: torch.Tensor, limit: int) -> torch.Tensor:
    """Memory that the last-level cache cannot hold, where Linux tells how large that is: of servers it is hundreds of MB."""
    try:
        cache = int(_LAST_LEVEL.read_text().strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        return memory
    needed = cache * 3 // 2
    return drawn_memory(needed) if memory.nbytes < needed < limit // 2 else memory


def _rounds(clock: Clock) -> Iterator[None]:
    """As many as there is time for: one in any case, since without it there are no rates."""
    for number in range(_ROUNDS):
        begun = time.perf_counter()
        yield
        ended = time.perf_counter()
        if number + 1 < _ROUNDS and clock.seconds_left < _ROUND_LEFT * (ended - begun):
            return


class _Pool:
    """Seconds and misses of a token by round, with one share of misses; the middle round counts."""

    def __init__(self) -> None:
        self._rounds: list[tuple[float, float]] = []

    def add(self, steps: Steps) -> None:
        count = len(steps.seconds)
        self._rounds.append((sum(steps.seconds) / count, steps.misses / count))

    @property
    def seconds(self) -> float:
        return median(seconds for seconds, _ in self._rounds)

    @property
    def misses(self) -> float:
        return sum(misses for _, misses in self._rounds) / len(self._rounds)


def _overlap(layers: list[float], disk: list[float]) -> Curve:
    """From seconds of a layer and of the drive alone, the first without misses, to `Rates.overlap`, which noise never makes
    fall."""
    points, most = [(0.0, 1.0)], 1.0
    for seconds, alone in zip(layers[1:], disk[1:], strict=True):
        most = max(most, seconds / layers[0])
        if alone / layers[0] > points[-1][0] + 0.01:
            points.append((alone / layers[0], most))
    return tuple(points)


def _drawn_experts(subject: Subject) -> tuple[RamArena, list[Expert]]:
    """Random experts, each once, and slots for them, together more than the caches hold."""
    experts = subject.experts
    count = max(subject.footprint.top_k, _CACHE_BYTES // slot_stride(experts))
    every = [(layer, expert) for layer in experts.layers for expert in range(experts.num_experts)]
    drawn = random.Random(0).sample(every, min(count, len(every)))
    return RamArena(slot_stride(experts), len(drawn)), drawn


def _disk_gbps(
    experts: ExpertMap, arena: RamArena, drawn: list[Expert], reader: DiskReader, seconds: float
) -> tuple[float, float]:
    """GB/s of whole experts, several in flight: the first time, when the system has yet to find the memory, and later ones."""
    wheres = [experts.ranges[layer][expert] for layer, expert in drawn]

    def read_all() -> float:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        moved, begun = 0, time.perf_counter()
        waiting = list(enumerate(wheres))[::-1]
        in_flight = 0
        while waiting or in_flight:
            while waiting and in_flight < _IN_FLIGHT:
                slot, where = waiting.pop()
                reader.submit(where.runs, run_bases(where), arena.memory(slot), None, done)
                in_flight += 1
            _, nbytes, error = done.get()
            in_flight -= 1
            if error is not None:
                raise error
            moved += nbytes
        return moved / (time.perf_counter() - begun) / 1e9

    fresh, again, begun = read_all(), list[float](), time.perf_counter()
    while not again or time.perf_counter() - begun < seconds:
        again.append(read_all())
    return fresh, median(again)


def _bound(subject: Subject, arena: RamArena, drawn: list[Expert], kernels: Kernels) -> tuple[ExpertTable, float]:
    """The experts as entries of a table, and the seconds that each took."""
    binder = ExpertBinder(subject.experts, subject.expert_format, small_parts(subject.experts))
    table, begun = SlotTable(arena, binder, kernels), time.perf_counter()
    for slot, expert in enumerate(drawn):
        table.bind(slot, expert)
    return table, (time.perf_counter() - begun) / len(drawn)
