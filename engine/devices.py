"""Graphics cards for a session: what of the model goes to each, and how fast their links are beside the CPU."""

import random
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from statistics import median
from typing import Any

import torch

from engine.card_rates import Lane, LaneCosts
from engine.checkpoint.experts import ExpertMap
from engine.experts.bind import ExpertBinder, ExpertFormat
from engine.experts.device_lanes import DeviceLanes
from engine.experts.miss import MissPath
from engine.experts.policy import Expert
from engine.experts.run import ExpertRunner
from engine.experts.vram import Device, VramTier
from engine.plan.footprint import Footprint
from engine.plan.plan import LEAST_CARD_SLOTS
from engine.tiers.copy import DeviceLost

RESERVE_SHARE = 0.04  # of a card's free memory that is kept free while the model runs: half of what the plan leaves
_ROUNDS = 7
_NOTHING = 1.05  # a slowdown that is none
_MANY = 4  # experts in one step, beside a step of one: the difference is what each of them costs


def open_tiers(
    devices: Sequence[Device],
    experts: ExpertMap,
    form: ExpertFormat,
    small: dict[str, torch.Tensor],
    footprint: Footprint,
    card_slots: Sequence[int],
) -> list[VramTier]:
    """So many slots on each device, or as many as it has room for; the dense part is on the first one already.

    Raises `DeviceLost` where that has no room for any.
    """
    stride, tiers = footprint.slot_bytes, list[VramTier]()
    for device, planned in zip(devices, card_slots, strict=True):
        bytes_free = device.accelerator.free_bytes()
        count = min(planned, int(bytes_free * (1 - RESERVE_SHARE)) // stride)
        if count < LEAST_CARD_SLOTS:
            if not tiers:
                raise DeviceLost(f"{device.accelerator.name} has no room for an expert beside the dense weights")
            continue
        own = {name: tensor.to(device.device) for name, tensor in small.items()}
        binder = ExpertBinder(experts, form, own)
        reserve, layers, total = int(bytes_free * RESERVE_SHARE), experts.layers, experts.num_experts
        tiers.append(VramTier.open(device, binder, layers, total, stride, count, footprint.top_k, reserve))
    if len(tiers) > 1:
        _share_out(tiers, [(layer, expert) for layer in experts.layers for expert in range(experts.num_experts)])
    return tiers


def _share_out(tiers: Sequence[VramTier], experts: list[Expert]) -> None:
    """In proportion to their slots, and so that every device has experts of every layer."""
    random.Random(0).shuffle(experts)
    slots, begin = sum(tier.arena.num_slots for tier in tiers), 0
    for tier, end in zip(tiers, accumulate(tier.arena.num_slots for tier in tiers), strict=True):
        tier.own = frozenset(experts[begin * len(experts) // slots : end * len(experts) // slots])
        begin = end


def start_lanes(lanes: DeviceLanes, runner: ExpertRunner, kept: Any = None) -> None:
    """Before the first token: try each link with the model's own bytes, and have the miss path begin with what `MissPath.kept`
    gave when this model last ran here; without it both lanes are measured.

    Raises `EngineError`, and `DeviceLost` for a link that changes bytes.
    """
    slots = runner.first_slots(_MANY)
    sources = [lanes.ram.tensor(slot) for slot in slots]
    for tier in lanes.tiers:
        lanes.ram.register(tier.accelerator)
        tier.check_link(sources)
    guess = lanes.path.lanes
    lanes.path = MissPath.restored(kept, guess)
    if lanes.path.lanes == guess:
        lanes.path = MissPath(measure_lanes(lanes, slots))


def measure_lanes(lanes: DeviceLanes, slots: Sequence[int]) -> LaneCosts:
    """The first device's link and the CPU with experts that are in these slots of RAM, alone and at once; some tens of
    milliseconds."""
    tier = lanes.tiers[0]
    slots = slots[: tier.arena.num_slots]
    pairs = [(lanes.ram.tensor(slot), tier.arena.tensor(place)) for place, slot in enumerate(slots)]

    def gather(count: int) -> float:
        return tier.accelerator.copy(pairs[:count]).finish()

    def compute(count: int) -> float:
        begun = time.perf_counter()
        lanes.compute_in_ram(slots[:count])
        return time.perf_counter() - begun

    many = len(slots)
    link, cpu = _lane(gather, many), _lane(compute, many)
    late = []
    for _ in range(_ROUNDS):
        copy = tier.accelerator.copy(pairs)
        busy = compute(many)
        late.append((copy.finish() + busy) / (link.seconds(many) + cpu.seconds(many)))
    slowdown = max(1.0, median(late))
    return LaneCosts(link, cpu, 0.0 if slowdown < _NOTHING else slowdown / (1 / link.each + 1 / cpu.each))


def _lane(serve: Callable[[int], float], many: int) -> Lane:
    serve(many)  # the first is never like the others
    one = median(serve(1) for _ in range(_ROUNDS))
    all_of_them = median(serve(many) for _ in range(_ROUNDS))
    each = max(all_of_them - one, 0.1 * all_of_them) / max(1, many - 1)
    return Lane(max(0.0, one - each), each)
