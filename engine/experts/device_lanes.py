"""A layer's experts on devices: those in VRAM there, the others gathered into it or computed in RAM, as `MissPath` says.

Every row of outputs is written by one lane, and rows are summed in routing order: the sum does not show which lane it was.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.card_rates import Lane, LaneCosts
from engine.experts.call import Call
from engine.experts.heat import hottest
from engine.experts.lanes import CpuLane
from engine.experts.miss import MissPath
from engine.experts.on_device import OnDevice
from engine.experts.policy import Expert
from engine.experts.vram import VramTier
from engine.kernels.weights import ExpertMath
from engine.meter import Link, Meter, Phase
from engine.tiers.arena import RamArena
from engine.tiers.copy import Copy, Timing

_FEW_ROWS = 4  # of one expert in a batch: up to there the CPU computes it about as fast as a single one
_PATIENCE = 32  # tokens without a hit in VRAM, after which that is said
_UNKNOWN = LaneCosts(Lane(20e-6, 1e-3), Lane(50e-6, 1e-3))


@dataclass(eq=False)
class _Step:
    """What a layer-step has under way, to be learned from once it has ended."""

    gathered: int
    computed: int
    copies: list[Copy] = field(default_factory=list)
    cpu_seconds: float = 0.0


class DeviceLanes:
    """`Lanes` over tiers of VRAM, where x is on the first one's device, and over the CPU. `path` is for the caller to set."""

    def __init__(
        self,
        tiers: Sequence[VramTier],
        cpu: CpuLane,
        ram: RamArena,
        math: ExpertMath,
        meter: Meter,
        expert_bytes: int,
        hidden_size: int,
        top_k: int,
    ) -> None:
        self.tiers, self._cpu, self.ram = tiers, cpu, ram
        self.path = MissPath(_UNKNOWN)
        self._math, self._meter, self._expert_bytes = math, meter, expert_bytes
        self._hidden_size, self._top_k = hidden_size, top_k
        self._is_decode = False
        self._begun = 0.0
        self._steps: list[_Step] = []  # since the host last waited for the devices
        self._timings: list[tuple[Timing, int]] = []  # with the bytes of each
        self._reading: list[Copy] = []  # may still read RAM
        self._hits = self._tokens_without_hit = 0
        self.on_device: OnDevice | None = None  # for the caller to set

    @property
    def notice(self) -> str:
        """A sentence where the cache in VRAM serves nobody, or the device fetches other bytes than it should."""
        if self.on_device is not None and self.on_device.notice:
            return self.on_device.notice
        count = self._tokens_without_hit
        return f"None of the last {count} tokens found an expert in VRAM." if count >= _PATIENCE else ""

    def begin_pass(self, phase: Phase) -> None:
        self._forget()
        self._meter.derived.discard(Link.PCIE)
        self._is_decode, self._begun, self._hits = phase is Phase.DECODE, time.perf_counter(), 0
        for tier in self.tiers:
            if tier.budget.is_due():
                tier.budget.adjust(self.release)
        if self.on_device is not None:
            if self._is_decode:
                self.on_device.begin(is_by_link=self.path.gathers_all(self._top_k))
            else:
                self.on_device.look()

    def holds(self, expert: Expert) -> bool:
        return self._tier_of(expert).slot_of(expert) is not None

    def alone(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor | None:
        if self.on_device is None or not self.on_device.is_on:
            return None
        entered = time.perf_counter()
        y = self.on_device(layer, x, ids, weights)
        self._meter.add(Link.VRAM, 0, time.perf_counter() - entered)  # what the device takes longer, the token's end waits for
        return y

    def begin(self, call: Call) -> list[Expert]:
        self._learn()
        call.outputs = call.x.new_empty(*call.shape, call.x.shape[1])
        for tier in self.tiers:
            tier.look_up([expert for expert in call.wanted if self._tier_of(expert) is tier])
        served = {expert for tier in self.tiers for expert in tier.hits}
        self._hits += len(served)
        self._meter.in_vram(len(served))
        return [expert for expert in call.wanted if expert not in served]

    def serve(self, call: Call, slots: dict[Expert, int], *, is_last: bool) -> torch.Tensor | None:
        if self._is_decode or len(call.numbers) <= _FEW_ROWS * len(call.wanted):
            self._divide(call, slots)
        else:
            self._run_hits(call)
            for tier in self.tiers:
                tier.hits.clear()  # others may pass through their slots, behind them
                self._stream(call, tier, {one: slot for one, slot in slots.items() if self._tier_of(one) is tier})
        if not is_last:
            return None
        if self._is_decode:
            for tier in self.tiers:
                tier.cache.touch(call.layer, [expert for _, expert in tier.wanted])
        assert call.outputs is not None, "the layer has begun"
        return self.tiers[0].kernels.combine(call.outputs, call.weights)

    def release(self) -> None:
        self._finish_copies()
        if self.on_device is not None:
            self.on_device.take_back()

    def _forget(self) -> None:
        """What a pass that was given up has left under way does not count for the next one."""
        for copy in self._reading:
            copy.finish()
        self._reading.clear()
        self._timings.clear()
        self._steps.clear()

    def _finish_copies(self) -> None:
        for copy in self._reading:
            self._meter.add(Link.PCIE, 0, copy.finish())
        self._reading.clear()

    def end_pass(self) -> None:
        self._learn()
        if not self._is_decode:
            return
        seconds = time.perf_counter() - self._begun
        is_alone = self.on_device is not None and self.on_device.is_on
        if self.on_device is not None:
            self._count_alone(*self.on_device.end(seconds))
        if not is_alone:
            self.path.end_token(seconds)
        self._tokens_without_hit = 0 if self._hits else self._tokens_without_hit + 1

    def _count_alone(self, hits: int, misses: int) -> None:
        """What a device did by itself. The link's seconds follow from what it was seen to give."""
        self._hits += hits
        self._meter.lookups(hits + misses, 0)
        self._meter.in_vram(hits)
        self._meter.add(Link.VRAM, (hits + misses) * self._expert_bytes, 0.0)
        self._meter.add(Link.PCIE, misses * self._expert_bytes, misses * self.path.lanes.link.each)
        if misses:
            self._meter.derived.add(Link.PCIE)

    def kept(self) -> Any:
        return self.path.kept()

    def heat(self) -> dict[Expert, float]:
        """How much each expert was used of late, whatever served it."""
        return {expert: value for tier in self.tiers for expert, value in tier.policy.heat().items()}

    def warm(self, heat: Mapping[Expert, float], bring: Callable[[Sequence[Expert]], Mapping[Expert, int]]) -> None:
        """Begin as an earlier run ended: its hottest experts go to VRAM, before the first token.

        `bring` has some of those that it is given in RAM, and says where; none once time is up.
        """
        for tier in self.tiers:
            own = {expert: value for expert, value in heat.items() if self._tier_of(expert) is tier}
            tier.policy.warm(own)
            waiting = hottest(own, tier.most_kept)
            members = set(waiting[: tier.cache.member_slots])  # where more are kept, the others stay guests
            while waiting and (slots := bring(waiting)):
                places = tier.claim(list(slots), ())
                tier.bring(places, [self.ram.tensor(slots[expert]) for expert in places]).finish()
                for expert in places:
                    if expert in members:
                        tier.cache.admit(*expert)
                waiting = [expert for expert in waiting if expert not in slots]

    def shrink(self, share: float) -> bool:
        """Give so much of the slots back, as memory was refused. False where that is not possible any more."""
        self._learn()
        self.release()
        return sum(tier.budget.shrink(share) for tier in self.tiers) > 0

    def _tier_of(self, expert: Expert) -> VramTier:
        """Which device an expert belongs to."""
        return next(tier for tier in self.tiers if expert in tier.own)

    def _divide(self, call: Call, slots: dict[Expert, int]) -> None:
        """Some are gathered while the CPU computes the others. The warmest are gathered, as they will be wanted again."""
        count = self.path.split(len(slots)) if slots else 0
        warmest = sorted(slots, key=lambda expert: self._tier_of(expert).policy.warmth(expert), reverse=True)[:count]
        step, begun = _Step(0, len(slots)), time.perf_counter()
        claimed = []
        for tier in self.tiers:
            places = tier.claim([expert for expert in warmest if self._tier_of(expert) is tier], ())
            if places:
                claimed.append((tier, places, self._bring(tier, places, slots)))
                step.copies.append(claimed[-1][2])
                step.gathered += len(places)
        step.computed -= step.gathered
        self._run_hits(call)
        if step.computed:
            gathered = {expert for _, places, _ in claimed for expert in places}
            self._on_cpu(call, {expert: slot for expert, slot in slots.items() if expert not in gathered})
            step.cpu_seconds = time.perf_counter() - begun
        for tier, places, copy in claimed:
            copy.order()
            self._run(call, tier, places)
        if self._is_decode and slots:
            self._steps.append(step)

    def _stream(self, call: Call, tier: VramTier, slots: dict[Expert, int]) -> None:
        """All of a prompt's experts through the guests' slots: while some are computed, the next are on their way."""
        waiting = list(slots)
        before: tuple[dict[Expert, int], Copy] | None = None
        half = max(1, tier.cache.num_guests // 2)
        while waiting or before:
            places = tier.claim(waiting[:half], before[0] if before else ())
            arriving = (places, self._bring(tier, places, slots)) if places else None
            waiting = waiting[len(places) :]
            if before:
                before[1].order()
                self._run(call, tier, before[0])
            assert before or arriving, "guests always leave a slot to gather into"
            before = arriving

    def _bring(self, tier: VramTier, places: dict[Expert, int], slots: dict[Expert, int]) -> Copy:
        copy = tier.bring(places, [self.ram.tensor(slots[expert]) for expert in places])
        self._reading.append(copy)
        self._meter.add(Link.PCIE, len(places) * self._expert_bytes, 0.0)
        return copy

    def _run_hits(self, call: Call) -> None:
        """Once for each call, as early as there is nothing better to start first."""
        if call.is_begun:
            return
        call.is_begun = True
        for tier in self.tiers:
            if tier.hits:
                self._run(call, tier, tier.hits)

    def _run(self, call: Call, tier: VramTier, slots: dict[Expert, int]) -> None:
        """On the tier's device; rows that another device computed come back over both links."""
        assert call.outputs is not None
        timing = tier.accelerator.time()
        if tier is self.tiers[0]:
            self._compute(tier, call, call.x, slots, call.outputs)
        else:
            device = tier.accelerator.device
            outputs = torch.empty(call.outputs.shape, device=device)
            self._compute(tier, call, call.x.to(device), slots, outputs)
            _put_rows(call, outputs, call.ranks_of(slots))
        timing.stop()
        self._timings.append((timing, len(slots) * self._expert_bytes))

    def compute_in_ram(self, slots: Sequence[int]) -> None:
        """Made-up work on the experts in these slots of RAM, to be timed: handed over as that of a layer-step is."""
        x = torch.zeros(1, self._hidden_size, device=self.tiers[0].accelerator.device)
        outputs = torch.empty(1, len(slots), self._hidden_size)
        self._cpu.compute(x.cpu(), torch.tensor([slots], dtype=torch.int32), len(slots), outputs)
        outputs.to(x.device)

    def _on_cpu(self, call: Call, slots: dict[Expert, int]) -> None:
        outputs = torch.empty(*call.shape, call.x.shape[1])
        self._cpu.compute(call.x.cpu(), call.slots_of(slots), len(slots), outputs)
        _put_rows(call, outputs, call.ranks_of(slots))

    def _compute(self, tier: VramTier, call: Call, x: torch.Tensor, slots: dict[Expert, int], outputs: torch.Tensor) -> None:
        places = call.slots_of(slots).to(x.device, non_blocking=True)
        tier.kernels.moe(tier.table, x, places, outputs, None, self._math)

    def _learn(self) -> None:
        """What has been under way since the last time: seconds for the meter and for the miss path."""
        self._finish_copies()
        for timing, nbytes in self._timings:
            self._meter.add(Link.VRAM, nbytes, timing.seconds())
        self._timings.clear()
        for step in self._steps:
            link = max((copy.finish() for copy in step.copies), default=0.0)
            self.path.saw(step.gathered, step.computed, link, step.cpu_seconds)
        self._steps.clear()


def _put_rows(call: Call, outputs: torch.Tensor, ranks: list[int]) -> None:
    """Rows [T * k, H] of another device among the call's own."""
    assert call.outputs is not None
    chosen = torch.tensor(ranks)
    rows = outputs.flatten(0, 1)[chosen.to(outputs.device)].to(call.outputs.device)
    call.outputs.flatten(0, 1)[chosen.to(call.outputs.device)] = rows
