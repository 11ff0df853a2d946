"""The first layers of a model as the engine will run them, with made-up dense weights and its own experts from disk.

Everything that a token costs beyond its bytes is in it: layers, hand-offs, the cache's bookkeeping, reads behind computing.
Which experts are asked for is made up, so that the share of misses is known.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from engine.captured import Alone, Captured, CudaGraphs
from engine.checkpoint.experts import ExpertMap
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.experts.bind import ExpertBinder, ExpertFormat
from engine.experts.budget import SlotBudget
from engine.experts.cache import ExpertCache
from engine.experts.device_lanes import DeviceLanes
from engine.experts.lanes import CpuLane
from engine.experts.on_device import Routed
from engine.experts.policy import Expert, Heat
from engine.experts.resident import Resident
from engine.experts.run import ExpertRunner
from engine.experts.table import SlotTable
from engine.experts.vram import Device, VramTier
from engine.kernels.kernels import Kernels
from engine.kernels.weights import Weight
from engine.kv.cache import KvCache
from engine.meter import Meter
from engine.models.decoder import Decoder
from engine.models.dense import Dense
from engine.models.layers import Weights
from engine.models.registry import Architecture
from engine.plan.footprint import Footprint
from engine.session import Parts, Session
from engine.tiers.arena import RamArena, aligned_memory
from engine.tiers.disk import DiskReader
from engine.units import format_bytes

_CACHE_BYTES = 192 << 20  # beyond any desktop's last-level cache, so that RAM is what is measured
RECALL = 0.85  # of guesses that the next layer's router asks for (0.89 and 0.72 measured by others on real models)
_POSITIONS = 256  # of context, in which steps are repeated
_BATCH = 512
_TILE_BYTES = 8 << 20
_PAGE = 4096
_LONG_SECONDS = 60.0  # for some experts
_OF_CARD = 0.8  # of its free memory, the rest is for what the kernels take
PROMPT_LAYERS = 4  # of a prompt's batch, which is bound by computing: one of each kind where kinds alternate
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class Subject(Protocol):
    """What the headers of a checkpoint tell, as `engine.engine.Source` holds it."""

    @property
    def architecture(self) -> Architecture: ...
    @property
    def config(self) -> Any: ...
    @property
    def dense(self) -> Dense: ...
    @property
    def experts(self) -> ExpertMap: ...
    @property
    def expert_format(self) -> ExpertFormat: ...
    @property
    def footprint(self) -> Footprint: ...


@dataclass(frozen=True, slots=True)
class Steps:
    """Some decoded tokens: misses of all of them, and the seconds of each."""

    misses: int
    seconds: list[float]


def small_parts(experts: ExpertMap) -> dict[str, torch.Tensor]:
    """The parts of experts that stay resident: some positive number in every type of scale. What they are costs nothing."""
    return {ref.name: torch.full((ref.nbytes,), 0x3F, dtype=torch.uint8) for ref in experts.small_refs()}


def drawn_memory(size: int) -> torch.Tensor:
    """uint8 [size] whose bytes are in every type of weight small numbers, and no two pages alike.

    Equal pages may be one page to the machine's host, and look faster than RAM.
    """
    memory = torch.frombuffer(aligned_memory(-(-size // _PAGE) * _PAGE), dtype=torch.uint8)
    tile = torch.randint(0, 256, (min(_TILE_BYTES, memory.numel()),), dtype=torch.uint8)
    tile &= 0xBF  # the top bit of the exponent is 0: no infinity, no NaN
    tile |= 0x20  # and its third is 1: no denormal number
    for first in range(0, memory.numel(), tile.numel()):
        part = memory[first : first + tile.numel()]
        part.copy_(tile[: part.numel()])
    pages = memory.view(-1, _PAGE)
    pages[:, :8] = (torch.randint(0, 256, (len(pages), 8), dtype=torch.uint8) & 0xBF) | 0x20
    return memory[:size]


class Rehearsal:
    """`decode` and `prompt` time passes over the first `num_layers` layers; with 0 layers there is only what surrounds them.

    With a card the model runs there, and the experts that are asked for are in its memory. Raises `EngineError` where memory is
    refused or an expert cannot be read.
    """

    def __init__(
        self,
        subject: Subject,
        reader: DiskReader,
        kernels: Kernels,
        memory_limit: int,
        recall: float = RECALL,
        card: Device | None = None,
    ) -> None:
        self._subject, self._reader, self._kernels, self._recall = subject, reader, kernels, recall
        self._card = card
        self._device = torch.device("cpu") if card is None else card.device
        self.weights, self.memory = _drawn_weights(subject.dense, self._device)
        if card is not None:
            memory_limit = min(memory_limit, int(card.accelerator.free_bytes() * _OF_CARD))
        shape = subject.footprint
        self.num_layers = self._layers_within(memory_limit)
        self.num_moe_layers = sum(layer < self.num_layers for layer in subject.experts.layers)
        if not self.num_moe_layers:
            needed = format_bytes(3 * shape.top_k * shape.slot_bytes)
            free = format_bytes(memory_limit)
            text = f"One layer's experts of {shape.name} take {needed} to be measured, and {free} is free for it."
            raise EngineError("bench.memory", text, "Close other programs.")
        slots = shape.top_k * (self.num_moe_layers + 2)
        self._arena = RamArena(shape.slot_bytes, slots)
        for slot in range(slots):  # a first touch within a token would count as its own time
            self._arena.tensor(slot)[::_PAGE] = 0
        self.begin()

    def _layers_within(self, limit: int) -> int:
        """Enough layers to be beyond the caches, as far as memory allows; 0 where not even one fits."""
        shape = self._subject.footprint
        per_layer = shape.top_k * shape.slot_bytes
        wanted = min(shape.num_moe_layers, max(2, -(-_CACHE_BYTES // per_layer)))
        fitting = min(wanted, limit // per_layer - 2)
        return self._subject.experts.layers[fitting - 1] + 1 if fitting > 0 else 0

    def begin(self) -> None:
        """Each layer has just as many experts in memory as a token asks for."""
        every, top_k, arena = self._subject.experts, self._subject.footprint.top_k, self._arena
        experts = ExpertMap({layer: every.ranges[layer] for layer in every.layers[: self.num_moe_layers]})
        cache = ExpertCache(experts.layers, [arena.num_slots], Heat(experts.layers, experts.num_experts), 2 * top_k)
        binder = ExpertBinder(experts, self._subject.expert_format, small_parts(experts))
        script = Script(experts, top_k, cache)
        script.recall = self._recall
        budget = SlotBudget(cache, arena, arena.num_slots, 0, lambda: 1 << 60)
        table, meter = SlotTable(arena, binder, self._kernels), Meter()
        cpu = CpuLane(table, self._kernels, self._subject.config.math, meter, experts.expert_bytes)
        self.lanes: CpuLane | DeviceLanes = cpu if self._card is None else self._on_card(self._card, experts, cpu, meter)
        if isinstance(self.lanes, DeviceLanes):
            script.follow(self.lanes.tiers[0].cache)
        self.runner = _Scripted(experts, cache, arena, table, self._reader, self.lanes, meter, script.look_ahead, budget)
        self.runner.script = script
        first = [(layer, expert) for layer in experts.layers for expert in range(top_k)]
        if isinstance(self.lanes, DeviceLanes):
            self.lanes.warm(dict.fromkeys(first, 1.0), lambda wanted: self.runner.bring(wanted, _LONG_SECONDS))
        else:
            self.runner.load(first, _LONG_SECONDS, lambda _: None)

    def _on_card(self, card: Device, experts: ExpertMap, cpu: CpuLane, meter: Meter) -> DeviceLanes:
        shape, math = self._subject.footprint, self._subject.config.math
        small = {name: part.to(card.device) for name, part in small_parts(experts).items()}
        binder = ExpertBinder(experts, self._subject.expert_format, small)
        layers, total, slots = experts.layers, experts.num_experts, self._arena.num_slots
        tier = VramTier.open(card, binder, layers, total, shape.slot_bytes, slots, shape.top_k, 0)
        return DeviceLanes([tier], cpu, self._arena, math, meter, experts.expert_bytes, shape.hidden_size, shape.top_k)

    def _session(self, num_layers: int, context: int, alone: Alone | None = None) -> Session:
        shape, config = self._subject.footprint, replace(self._subject.config, num_layers=num_layers)
        kv = KvCache(
            max(1, num_layers), shape.num_kv_heads, shape.head_dim, context, self._device, shape.kv_type,
            compressed=config.kept_compressed,
        )  # fmt: skip
        kernels = self._kernels if self._card is None else self._card.kernels
        model = self._subject.architecture.load().build(config, self.weights, kernels)
        captured = None
        if alone is not None and isinstance(model, Decoder) and self._device.type == "cuda":
            captured = Captured(model, kv, alone, CudaGraphs(self._device))
        return Session(Parts(model, kv, self.runner, dict, Meter(), captured=captured), self._reader)

    def around(self, seconds: float) -> list[float]:
        """Seconds of tokens without their layers."""
        return _timed_steps(self._session(0, _POSITIONS), seconds)

    def decode(self, miss_share: float, seconds: float) -> Steps:
        """Tokens whose experts are absent with this chance, for so many seconds after one to settle."""
        script, session = self.runner.script, self._session(self.num_layers, _POSITIONS)
        script.miss_share = miss_share
        session.step(1)
        before = script.misses
        times = _timed_steps(session, seconds)
        return Steps(script.misses - before, times)

    def resident(self, seconds: float) -> list[float]:
        """Seconds of tokens whose experts are left to the card, recorded where it can: as it does where it holds them all."""
        assert isinstance(self.lanes, DeviceLanes), "a rehearsal with a card"
        (tier,), script, layers = self.lanes.tiers, self.runner.script, self._subject.experts.layers[: self.num_moe_layers]
        resident = Resident(tier, layers, self._subject.experts.num_experts, self._subject.config.math)
        resident.look()
        present = {layer: torch.tensor([script.present(layer)], dtype=torch.int32, device=self._device) for layer in layers}
        self.runner.alone = alone = _AllThere(resident, present)
        session = self._session(self.num_layers, _POSITIONS, alone)
        session.step(1)
        times = _timed_steps(session, seconds)
        self.runner.alone = None
        return times

    def prompt(self, tokens: int, seconds: float) -> float:
        """Seconds of a batch through the first `PROMPT_LAYERS` layers without their experts, the best of some."""
        runner, session = self.runner, self._session(min(PROMPT_LAYERS, self.num_layers), _BATCH)
        runner.script.is_silent = True
        best, begun = float("inf"), time.perf_counter()
        while True:
            session.rewind(0)
            entered = time.perf_counter()
            session.sync([1] * tokens)
            best = min(best, time.perf_counter() - entered)
            if time.perf_counter() - begun > seconds:
                break
        runner.script.is_silent = False
        return best


class Script:
    """Which experts each layer asks for: present ones, and absent ones with a given chance."""

    def __init__(self, experts: ExpertMap, top_k: int, cache: ExpertCache) -> None:
        self._layers, self._num_experts, self._top_k, self._cache = experts.layers, experts.num_experts, top_k, cache
        self._following = dict(zip(self._layers, self._layers[1:], strict=False))
        self._draw = random.Random(0)
        self._next: dict[int, list[int]] = {}
        self.miss_share, self.recall = 0.0, RECALL
        self.is_silent = False
        self.misses = self.tokens = 0

    def ids(self, layer: int) -> list[int]:
        """For the layer that computes now."""
        ids = self._next.pop(layer, None) or self._drawn(layer)
        self.tokens += layer == self._layers[0]
        return ids

    def look_ahead(self, layer: int, _: torch.Tensor) -> list[Expert]:
        """What the next layer will ask for, some of it guessed wrong."""
        following = self._following.get(layer)
        if following is None:
            return []
        ids = self._next.setdefault(following, self._drawn(following))
        others = [expert for expert in range(self._num_experts) if expert not in ids]
        wrong = min(len(others), sum(self._draw.random() >= self.recall for _ in ids))
        guessed = self._draw.sample(ids, len(ids) - wrong) + self._draw.sample(others, wrong)
        return [(following, expert) for expert in guessed]

    def follow(self, cache: ExpertCache) -> None:
        """Present is from now on what this one holds."""
        self._cache = cache

    def present(self, layer: int) -> list[int]:
        return [expert for expert in range(self._num_experts) if self._cache.lookup(layer, expert) is not None]

    def _drawn(self, layer: int) -> list[int]:
        present = self.present(layer)
        absent = [expert for expert in range(self._num_experts) if expert not in set(present)]
        wanted = sum(self._draw.random() < self.miss_share for _ in range(self._top_k))
        count = min(len(absent), max(wanted, self._top_k - len(present)))
        self.misses += count
        return self._draw.sample(absent, count) + self._draw.sample(present, self._top_k - count)


class _Scripted(ExpertRunner):
    script: Script
    alone: Alone | None = None

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if self.alone is not None:
            return self.alone(layer, x, ids, weights)
        if self.script.is_silent:
            return torch.zeros_like(x)
        return super().__call__(layer, x, torch.tensor([self.script.ids(layer)], dtype=torch.int32), weights)


class _AllThere:
    """An `Alone` whose layers get the experts `present` int32 [1, k] there, whatever was routed."""

    is_on = True

    def __init__(self, resident: Resident, present: dict[int, torch.Tensor]) -> None:
        self._resident, self._present = resident, present
        self.epoch, self.routed = 0, Routed()

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return self._resident(layer, x, self._present[layer], weights)


def _timed_steps(session: Session, seconds: float) -> list[float]:
    times: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds or len(times) < 3:
        if len(session.tokens) >= session.capacity:
            session.rewind(0)
        entered = time.perf_counter()
        session.step(1)
        times.append(time.perf_counter() - entered)
    return times


def _drawn_weights(dense: Dense, device: torch.device) -> tuple[Weights, torch.Tensor]:
    """Every dense tensor as a piece of one memory that is larger than the caches, and that memory; neighbours in use do not
    overlap."""
    size = max(_CACHE_BYTES, *(ref.nbytes for ref in dense.refs))
    memory, position = drawn_memory(size).to(device), 0

    def piece(ref: TensorRef) -> torch.Tensor:
        nonlocal position
        if position + ref.nbytes > size:
            position = 0
        begin, position = position, position + -(-ref.nbytes // 64) * 64
        return memory[begin : begin + ref.nbytes]

    matrices: dict[str, Weight] = {}
    for stem, (layout, parts) in dense.layouts.items():
        matrices[stem] = layout.bind({suffix: piece(parts[suffix]) for suffix in layout.parts})
    vectors = {name: piece(ref).view(_FLOATS[ref.dtype]).float() for name, ref in dense.vectors.items()}
    tables = {name: torch.zeros(ref.shape, dtype=torch.int64, device=memory.device) for name, ref in dense.tables.items()}
    return Weights(matrices, vectors, tables=tables), memory


def layer_matrices(dense: Dense, weights: Weights, num_layers: int) -> Sequence[Weight]:
    """The matrices of the first layers, without the frame's."""
    prefixes = tuple(f"model.layers.{layer}." for layer in range(num_layers))
    return [weight for stem, weight in weights.matrices.items() if stem.startswith(prefixes)]
