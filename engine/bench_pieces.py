"""Pieces of a measurement that the CPU and a card have in common: one kind of work each, timed where it runs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from engine.config import Sampling
from engine.experts.vram import Device
from engine.kernels.kept import DTYPES
from engine.kernels.kernels import Kernels
from engine.kernels.native import ExpertTable
from engine.kernels.weights import ExpertMath, Weight
from engine.plan.footprint import Footprint, attention_macs
from engine.rates import Curve
from engine.rehearsal import PROMPT_LAYERS, Rehearsal, Subject, layer_matrices
from engine.sample import make_sampler

ROWS = (2, 4, 8, 16, 32, 64)  # of an expert in a batch
BATCHES = (16, 64, 512)  # tokens of a prompt
_LONG_CONTEXT = 8192
_QUERIES = 128
_LEAST_SECONDS = 1e-6  # of a batch's layers: below, the clock saw nothing
_LOGIT_SPREAD = 4.0  # of trained models, roughly: a flat distribution takes the sampler much longer


class Stopped(Exception):  # noqa: N818 - an outcome, not an error
    """Whoever asked for the measurement gave it up."""


class Clock:
    """Shares out what is left of the time over `parts`, and tells how far it is."""

    def __init__(
        self,
        seconds: float,
        parts: int,
        progress: Callable[[int, int], None] = lambda *_: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._deadline = time.perf_counter() + seconds
        self._progress, self._should_stop = progress, should_stop
        self._done, self._total = 0, parts

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.perf_counter()

    def part(self) -> float:
        """Seconds of the next piece. Raises `Stopped`."""
        if self._should_stop():
            raise Stopped
        self._progress(self._done, self._total)
        left = self._total - self._done
        self._done += 1
        return max(0.0, self.seconds_left) / left


@dataclass(frozen=True)
class Place:
    """Where work is timed: `seconds_of` runs something there once and waits for it."""

    kernels: Kernels
    device: torch.device
    seconds_of: Callable[[Callable[[], object]], float]


def on_cpu(kernels: Kernels) -> Place:
    def seconds_of(run: Callable[[], object]) -> float:
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

    return Place(kernels, torch.device("cpu"), seconds_of)


def on_card(card: Device) -> Place:
    """By the card's own clock."""

    def seconds_of(run: Callable[[], object]) -> float:
        timing = card.accelerator.time()
        run()
        timing.stop()
        return timing.seconds()

    return Place(card.kernels, card.device, seconds_of)


def expert_gbps(
    subject: Subject, table: ExpertTable, slots: Sequence[int], count: int, rows: int, place: Place, seconds: float
) -> float:
    """Weight bytes per second of `count` experts in one call with so many rows each, one group of slots after the other."""
    count, math = min(count, len(slots)), subject.config.math
    taken = moe_seconds(table, slots, (rows, count), subject.footprint.hidden_size, math, place, seconds)
    return count * subject.experts.expert_bytes / taken / 1e9


def moe_seconds(
    table: ExpertTable, slots: Sequence[int], shape: tuple[int, int], hidden_size: int, math: ExpertMath, place: Place,
    seconds: float,
) -> float:  # fmt: skip
    """Of one call with `shape` rows and experts, whose slots are taken in turn so that no cache holds them; the median."""
    rows, count = shape
    x, weights = torch.randn(rows, hidden_size, device=place.device), torch.ones(rows, count, device=place.device)
    times: list[float] = []
    begun, first = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds or len(times) < 2:
        chosen = [slots[(first + number) % len(slots)] for number in range(count)]
        asked = torch.tensor([chosen], dtype=torch.int32).expand(rows, count).contiguous().to(place.device)
        times.append(place.seconds_of(partial(place.kernels.moe, table, x, asked, None, weights, math)))
        first += count
    return median(times)


def dense_gbps(matrices: Sequence[Weight], place: Place, seconds: float) -> float:
    """One token through the matrices of some layers, one after the other."""
    inputs = {weight.cols: torch.randn(1, weight.cols, device=place.device) for weight in matrices}

    def run() -> None:
        for weight in matrices:
            place.kernels.linear(inputs[weight.cols], weight)

    return sum(weight.data.nbytes for weight in matrices) / median(_times(run, place, seconds)) / 1e9


def attention_rates(shape: Footprint, place: Place, part: Callable[[], float]) -> tuple[float, float]:
    """GB/s of keys and values for one token over a long context, and 1e9 multiply-adds per second of a batch over it."""
    size = (shape.num_kv_heads, _LONG_CONTEXT, shape.head_dim)
    keys, values = (torch.randn(size).to(DTYPES[shape.kv_type]).to(place.device) for _ in range(2))

    def seconds(queries: int) -> float:
        q = torch.randn(queries, shape.heads, shape.head_dim, device=place.device)
        return median(_times(lambda: place.kernels.attention(q, keys, values), place, part()))

    one, many = seconds(1), seconds(_QUERIES)
    return 2 * keys.nbytes / one / 1e9, attention_macs(_QUERIES, _LONG_CONTEXT, shape.heads, shape.head_dim) / many / 1e9


def read_seconds(memory: torch.Tensor, place: Place, seconds: float) -> list[float]:
    """Of passes over all of it, with everything that can read at once."""
    return _times(lambda: place.kernels.read(memory), place, seconds)


def sampler_seconds(vocab_size: int) -> float:
    """Of drawing one token, which the CPU does."""
    sampler, logits = make_sampler(Sampling()), _LOGIT_SPREAD * torch.randn(vocab_size)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        sampler(logits, ())
        times.append(time.perf_counter() - begun)
    return median(times)


def layer_seconds_by_bytes(subject: Subject, rehearsal: Rehearsal, of_dense: float, of_experts: float) -> float:
    """Of a decoded token in one layer of a rehearsal, on average, by what it reads and two rates in GB/s. Its first layers may
    have no routed experts."""
    matrices = layer_matrices(subject.dense, rehearsal.weights, rehearsal.num_layers)
    routed = rehearsal.num_moe_layers * subject.footprint.top_k * subject.experts.expert_bytes
    return (sum(weight.data.nbytes for weight in matrices) / of_dense + routed / of_experts) / rehearsal.num_layers / 1e9


def dense_by_tokens(subject: Subject, rehearsal: Rehearsal, of_one: float, prompts: Sequence[float], outside: float) -> Curve:
    """GB/s of the dense weights by tokens at once: `of_one` for one, then `prompts` in seconds for `BATCHES`, each with
    `outside` that is not of the layers."""
    layers = min(PROMPT_LAYERS, rehearsal.num_layers)
    nbytes = sum(weight.data.nbytes for weight in layer_matrices(subject.dense, rehearsal.weights, layers))
    rates = (nbytes / max(_LEAST_SECONDS, taken - outside) / 1e9 for taken in prompts)
    return ((1.0, of_one), *zip(map(float, BATCHES), rates, strict=True))


def _times(run: Callable[[], object], place: Place, seconds: float) -> list[float]:
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 2:
        times.append(place.seconds_of(run))
    return times
