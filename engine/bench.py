"""Measures what this machine gives, with the model's own expert size and the engine's own readers, kernels and layers."""

import queue
import random
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import torch

from engine.checkpoint.experts import ExpertMap
from engine.config import Sampling
from engine.experts.bind import ExpertBinder
from engine.experts.policy import Expert
from engine.experts.table import SlotTable
from engine.kernels.kept import DTYPES
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import Weight
from engine.plan.footprint import attention_macs
from engine.rates import Curve, Rates
from engine.rehearsal import PROMPT_LAYERS, RECALL, Rehearsal, Steps, Subject, layer_matrices, small_parts
from engine.sample import make_sampler
from engine.tiers.arena import RamArena, run_bases, slot_stride
from engine.tiers.disk import DiskReader

SECONDS, SHORT_SECONDS = 8.0, 3.0  # before a load; where nobody keeps the result
_CACHE_BYTES = 128 << 20  # beyond most desktops' last-level cache, so that RAM is what is measured
_IN_FLIGHT = 8
_MISS_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_ROUNDS = 3  # so that a mood of the computer falls on all of it
_ROWS = (2, 4, 8, 16, 32, 64)
_BATCHES = (16, 64, 512)
_LEAST_SECONDS = 1e-6  # of a token's layers: below, the clock saw nothing
_LONG_CONTEXT = 8192
_QUERIES = 128
_LOGIT_SPREAD = 4.0  # of trained models, roughly: a flat distribution takes the sampler much longer
_FIXED_PARTS = 1 + len(_ROWS) + 2 + len(_BATCHES)
_ROUND_LEFT = 0.8  # of the last round's time, for another one
_ROUND_PARTS = 4 + len(_MISS_SHARES)


class Stopped(Exception):  # noqa: N818 - an outcome, not an error
    """Whoever asked for the measurement gave it up."""


class _Clock:
    """Shares out what is left of the time, and tells how far it is."""

    def __init__(self, seconds: float, progress: Callable[[int, int], None], should_stop: Callable[[], bool]) -> None:
        self._deadline = time.perf_counter() + seconds
        self._progress, self._should_stop = progress, should_stop
        self._done, self._total = 0, _FIXED_PARTS + _ROUNDS * _ROUND_PARTS

    def part(self) -> float:
        """Seconds of the next piece. Raises `Stopped`."""
        if self._should_stop():
            raise Stopped
        self._progress(self._done, self._total)
        left = self._total - self._done
        self._done += 1
        return max(0.0, self._deadline - time.perf_counter()) / left

    def rounds(self) -> Iterator[None]:
        """As many as there is time for: one in any case, since without it there are no rates."""
        for number in range(_ROUNDS):
            begun = time.perf_counter()
            yield
            ended = time.perf_counter()
            if number + 1 < _ROUNDS and self._deadline - ended < _ROUND_LEFT * (ended - begun):
                return


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
    clock = _Clock(seconds, progress, should_stop)
    arena, drawn = _drawn_experts(subject)
    fresh_gbps, disk_gbps = _disk_gbps(subject.experts, arena, drawn, reader, clock.part())
    table, first_seconds = _bound(subject, arena, drawn, kernels)
    by_rows = tuple((float(rows), _expert_gbps(subject, table, 8, rows, kernels, clock.part())) for rows in _ROWS)
    kv_gbps, gmacs = _attention(subject, kernels, clock)
    rehearsal = Rehearsal(subject, reader, kernels, memory_limit, recall)
    matrices = layer_matrices(subject.dense, rehearsal.weights, rehearsal.num_layers)
    block_bytes = sum(weight.data.nbytes for weight in matrices)
    first_layers = layer_matrices(subject.dense, rehearsal.weights, min(PROMPT_LAYERS, rehearsal.num_layers))
    prompt_bytes = sum(weight.data.nbytes for weight in first_layers)
    prompts = [rehearsal.prompt(count, clock.part()) for count in _BATCHES]
    passes, experts, dense, around, decoded = [], [], [], [], [_Pool() for _ in _MISS_SHARES]
    for _ in clock.rounds():
        passes += _read_seconds(rehearsal.memory, kernels, clock.part())
        experts.append(_expert_gbps(subject, table, subject.footprint.top_k, 1, kernels, clock.part()))
        dense.append(_dense_gbps(matrices, kernels, clock.part()))
        around += rehearsal.around(clock.part() / 2)
        rehearsal.begin()
        for pool, share in zip(decoded, _MISS_SHARES, strict=True):
            pool.add(rehearsal.decode(share, clock.part()))
    outside = median(around)
    by_tokens = tuple(
        (float(count), prompt_bytes / max(1e-6, seconds - outside) / 1e9)
        for count, seconds in zip(_BATCHES, prompts, strict=True)
    )
    expert_gbps, dense_gbps = median(experts), median(dense)
    layers = [max(_LEAST_SECONDS, pool.seconds - outside) / rehearsal.num_layers for pool in decoded]
    by_bytes = block_bytes / rehearsal.num_layers / dense_gbps / 1e9
    by_bytes += subject.footprint.top_k * subject.experts.expert_bytes / expert_gbps / 1e9
    faster = max(1.0, by_bytes / layers[0])  # than the kernels by themselves, on a computer that changes within seconds
    head_seconds = subject.footprint.head_bytes / dense_gbps / 1e9
    missed = [pool.misses / rehearsal.num_layers * subject.experts.expert_bytes / disk_gbps / 1e9 for pool in decoded]
    return Rates(
        ram_gbps=max(rehearsal.memory.nbytes / median(passes) / 1e9, expert_gbps * faster),  # as much has been read, for one
        disk_gbps=disk_gbps, fresh_gbps=min(fresh_gbps, disk_gbps),
        expert_gbps=expert_gbps * faster, dense_gbps=dense_gbps * faster, kv_gbps=kv_gbps,
        layer_seconds=max(0.0, layers[0] - by_bytes),
        token_seconds=max(0.0, outside - head_seconds) + _sampler_seconds(subject),
        first_seconds=first_seconds, overlap=_overlap(layers, missed), attention_gmacs=gmacs,
        experts_by_rows=((1.0, expert_gbps), *by_rows), dense_by_tokens=((1.0, dense_gbps), *by_tokens),
        expert_bytes=subject.experts.expert_bytes, seconds=time.time(),
    )  # fmt: skip


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


def _expert_gbps(subject: Subject, table: ExpertTable, count: int, rows: int, kernels: Kernels, seconds: float) -> float:
    """Weight bytes per second of `count` experts in one call with so many rows each, one group of experts after the other."""
    count, math = min(count, len(table)), subject.config.math
    tokens = rows if rows > 1 else 1
    x, weights = torch.randn(tokens, subject.footprint.hidden_size), torch.ones(tokens, count)
    times: list[float] = []
    begun, first = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or len(times) < 2:
        slots = (torch.arange(first, first + count, dtype=torch.int32) % len(table)).expand(tokens, count).contiguous()
        entered = time.perf_counter()
        kernels.moe(table, x, slots, None, weights, math)
        times.append(time.perf_counter() - entered)
        first += count
    return count * subject.experts.expert_bytes / median(times) / 1e9


def _dense_gbps(matrices: Sequence[Weight], kernels: Kernels, seconds: float) -> float:
    """One token through the matrices of some layers, one after the other."""
    inputs = {weight.cols: torch.randn(1, weight.cols) for weight in matrices}
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 2:
        entered = time.perf_counter()
        for weight in matrices:
            kernels.linear(inputs[weight.cols], weight)
        times.append(time.perf_counter() - entered)
    return sum(weight.data.nbytes for weight in matrices) / median(times) / 1e9


def _attention(subject: Subject, kernels: Kernels, clock: _Clock) -> tuple[float, float]:
    """GB/s of keys and values for one token over a long context, and 1e9 multiply-adds per second of a batch over it."""
    shape = subject.footprint
    size = (shape.num_kv_heads, _LONG_CONTEXT, shape.head_dim)
    keys, values = (torch.randn(size).to(DTYPES[shape.kv_type]) for _ in range(2))
    one = _attention_seconds(torch.randn(1, shape.heads, shape.head_dim), keys, values, kernels, clock.part())
    many = _attention_seconds(torch.randn(_QUERIES, shape.heads, shape.head_dim), keys, values, kernels, clock.part())
    return 2 * keys.nbytes / one / 1e9, attention_macs(_QUERIES, _LONG_CONTEXT, shape.heads, shape.head_dim) / many / 1e9


def _attention_seconds(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, kernels: Kernels, seconds: float) -> float:
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 2:
        entered = time.perf_counter()
        kernels.attention(q, keys, values)
        times.append(time.perf_counter() - entered)
    return median(times)


def _sampler_seconds(subject: Subject) -> float:
    sampler, logits = make_sampler(Sampling()), _LOGIT_SPREAD * torch.randn(subject.footprint.vocab_size)
    times = []
    for _ in range(5):
        entered = time.perf_counter()
        sampler(logits, ())
        times.append(time.perf_counter() - entered)
    return median(times)


def _read_seconds(memory: torch.Tensor, kernels: Kernels, seconds: float) -> list[float]:
    """Of passes over all of it with every thread."""
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 2:
        entered = time.perf_counter()
        kernels.read(memory)
        times.append(time.perf_counter() - entered)
    return times
