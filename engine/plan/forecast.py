"""One plan with everything that can be said of it before it runs: for the label, the wizard, the loader and the command line.

Pure, like its parts: what is known of this computer comes in as `Knowledge`, and what is not known is named, never assumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from engine.card_rates import CardRates
from engine.config import KvType, Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.meter import Link
from engine.plan.footprint import Footprint
from engine.plan.locality import PUBLISHED, Locality
from engine.plan.plan import (
    LEAST_CARD_SLOTS,
    LEAST_CHUNK,
    MOST_CHUNK,
    SHORTEST_CONTEXT,
    allows_cards,
    least_vram,
    make_plan,
    vram_rooms,
)
from engine.plan.predict import NO_CORRECTION, Correction, predict, resident_share, vram_share
from engine.protocol import Change, Fit, Gain, Plan
from engine.rates import Rates
from engine.units import GB, MB, format_bytes

_MORE_RAM = tuple(size * GB for size in (8, 16, 32, 64, 96, 128, 192, 256))
_LARGEST_STEP = 32 * GB  # of a proposal that does not make everything fit
_DISK_TIMES = 2
_WORTH = 1.05  # a gain below is not worth a sentence
_LONGEST = 1 << 20
_ALIKE = 0.05  # of all experts


@dataclass(frozen=True, slots=True)
class Seen:
    """What earlier answers of a model came to here."""

    correction: Correction = NO_CORRECTION
    speeds: tuple[tuple[float, float, float], ...] = ()  # shares of the experts in memory and in VRAM, tokens/s


NOT_SEEN = Seen()


@dataclass(frozen=True, slots=True)
class Knowledge:
    """`rates` are of the model's weight format, None where `unknown` says why there are none; so with those of the card."""

    rates: Rates | None = None
    unknown: str = "this computer has not been measured yet"
    card: CardRates | None = None
    unknown_card: str = "the graphics card has not been measured yet"
    locality: Locality = PUBLISHED
    in_ram: Seen = NOT_SEEN  # without a graphics card
    on_card: Seen = NOT_SEEN

    def seen(self, plan: Plan) -> Seen:
        """As such a plan would run."""
        return self.on_card if plan.vram_slots else self.in_ram


NOTHING = Knowledge()


def forecast(
    machine: Machine,
    footprint: Footprint,
    wishes: Wishes,
    known: Knowledge = NOTHING,
    default_expert_ram: str | None = None,
) -> Plan:
    """The plan, its prediction, what would help and what each choice costs. Raises `EngineError` as `make_plan` does."""
    plan = make_plan(machine, footprint, wishes, default_expert_ram)
    plan = _with_measured(replace(plan, notes=tuple(_notes(machine, footprint, wishes, plan))), known)
    if known.rates is None:
        return replace(plan, unknown=f"Cannot estimate, because {known.unknown}.")
    if plan.vram_slots and known.card is None:
        return replace(plan, unknown=f"Cannot estimate, because {known.unknown_card}.")
    plan = _predicted(plan, footprint, known)
    asked = replace(wishes, context=plan.context)  # so that only one thing changes
    gains = tuple(_gains(machine, footprint, asked, known, default_expert_ram, plan))
    prices = _prices(_Priced(machine, footprint, known, default_expert_ram, plan), asked)
    return replace(plan, gains=gains, prices=tuple(prices))


def _with_measured(plan: Plan, known: Knowledge) -> Plan:
    """What answers came to here with about as many experts in memory, and in that of graphics cards."""
    shares = resident_share(plan), vram_share(plan)
    alike = [
        speed
        for *seen, speed in known.seen(plan).speeds
        if all(abs(one - other) <= _ALIKE for one, other in zip(seen, shares, strict=True))
    ]
    if not alike:
        return plan
    return replace(plan, measured_tokens_per_second=median(alike), measured_answers=len(alike))


def fit_of(plan: Plan) -> Fit:
    if vram_share(plan) == 1:
        return Fit.VRAM
    if resident_share(plan) == 1:
        return Fit.VRAM_RAM if plan.vram_slots else Fit.RAM
    return Fit.DISK


def _predicted(plan: Plan, footprint: Footprint, known: Knowledge) -> Plan:
    assert known.rates is not None, "no rates"
    card = known.card if plan.vram_slots else None
    return predict(plan, footprint, known.rates, known.locality, known.seen(plan).correction, card)


def _speed(plan: Plan) -> tuple[float, float]:
    assert plan.predicted_tokens_per_second is not None, "no prediction"
    return plan.predicted_tokens_per_second


def _gains(
    machine: Machine, footprint: Footprint, wishes: Wishes, known: Knowledge, default_expert_ram: str | None, plan: Plan
) -> Iterator[Gain]:
    """What more RAM and a faster drive would bring, where experts come from disk for want of memory."""
    if fit_of(plan) is not Fit.DISK or known.rates is None:
        return
    if not wishes.expert_ram and not default_expert_ram:
        more, better = _with_more_ram(machine, footprint, wishes, known)
        if _speed(better)[0] > _WORTH * _speed(plan)[0]:
            yield Gain(Change.RAM, f"{more // GB} GB more RAM", more, _speed(better))
    rates = known.rates
    faster = replace(rates, disk_gbps=_DISK_TIMES * rates.disk_gbps, fresh_gbps=_DISK_TIMES * rates.fresh_gbps)
    better = _predicted(plan, footprint, replace(known, rates=faster))
    if _speed(better)[0] > _WORTH * _speed(plan)[0]:
        yield Gain(Change.DISK, f"a drive of {faster.disk_gbps:.1f} GB/s", int(faster.disk_gbps * GB), _speed(better))


def _with_more_ram(machine: Machine, footprint: Footprint, wishes: Wishes, known: Knowledge) -> tuple[int, Plan]:
    """The smallest step as memory is sold that makes everything fit, or else a usual one."""
    plans = []
    for more in _MORE_RAM:
        roomier = replace(machine, ram_total=machine.ram_total + more, ram_available=machine.ram_available + more)
        plans.append((more, make_plan(roomier, footprint, wishes)))
        if fit_of(plans[-1][1]) is not Fit.DISK:
            break
    else:
        plans = [(more, plan) for more, plan in plans if more == _LARGEST_STEP]
    more, plan = plans[-1]
    return more, _predicted(plan, footprint, known)


@dataclass(frozen=True, slots=True)
class _Priced:
    """What stays as it is while one wish changes."""

    machine: Machine
    footprint: Footprint
    known: Knowledge
    default_expert_ram: str | None
    plan: Plan


def _prices(base: _Priced, wishes: Wishes) -> Iterator[Gain]:
    """A step of each wish in both directions, where it can be met."""
    plan, footprint = base.plan, base.footprint
    for context in (plan.context * 2, plan.context // 2):
        if SHORTEST_CONTEXT <= context <= min(footprint.max_context, _LONGEST):
            yield from _price(base, replace(wishes, context=context), Change.CONTEXT)
    for chunk in (plan.prefill_chunk * 2, plan.prefill_chunk // 2):
        if LEAST_CHUNK <= chunk <= MOST_CHUNK:
            yield from _price(base, replace(wishes, prefill_chunk=chunk), Change.PREFILL_CHUNK)
    for kv_type in KvType:
        if kv_type is not plan.kv_type:
            yield from _price(base, replace(wishes, kv_type=kv_type), Change.KV_TYPE)
    for limit in _vram_limits(base):
        yield from _price(base, replace(wishes, vram_limit=_amount(limit)), Change.VRAM_LIMIT)
    step = max(GB // 2, plan.expert_ram_bytes // 10)
    for size in (plan.expert_ram_bytes + step, plan.expert_ram_bytes - step):
        if footprint.floor_bytes <= size:
            yield from _price(base, replace(wishes, expert_ram=_amount(size)), Change.EXPERT_RAM)


def _vram_limits(base: _Priced) -> Iterator[int]:
    """A step up and down of the cards' memory, and doing without; where none is taken, all that there is."""
    taken, plan = vram_taken(base.plan), base.plan
    if not taken:
        yield sum(vram_rooms(base.machine))
        return
    step = max(GB // 2, taken // 10)
    yield from (taken + step, max(_least_vram(base.footprint, plan), taken - step), 0)


def _least_vram(footprint: Footprint, plan: Plan) -> int:
    """As `least_vram`, with what the plan has decided."""
    return least_vram(replace(footprint, kv_type=plan.kv_type), plan.context, plan.prefill_chunk)


def vram_taken(plan: Plan) -> int:
    """Bytes of the graphics cards' memory."""
    return sum(tier.used for tier in plan.tiers if tier.link is Link.VRAM)


def _amount(nbytes: int) -> str:
    """As a wish: no less, since a limit of what is taken must be enough for it."""
    return f"{-(-nbytes // MB)}MB"


def _price(base: _Priced, wishes: Wishes, change: Change) -> Iterator[Gain]:
    plan, known = base.plan, base.known
    try:
        other = make_plan(base.machine, base.footprint, wishes, base.default_expert_ram)
    except EngineError:
        return  # a wish that cannot be met has no price
    if other.vram_slots and known.card is None:
        return
    other = _predicted(other, base.footprint, known)
    more = other.kv_bytes + other.workspace_bytes - plan.kv_bytes - plan.workspace_bytes
    if change is Change.CONTEXT:
        yield Gain(change, f"{other.context} tokens of context", more, _speed(other))
    elif change is Change.KV_TYPE:
        yield Gain(change, f"keys and values as {other.kv_type}", more, _speed(other))
    elif change is Change.PREFILL_CHUNK:
        first = other.first_tokens[-1]
        text = f"{other.prefill_chunk} tokens of a prompt at once, {first.high:.1f} s to answer {first.prompt_tokens}"
        yield Gain(change, text, more, _speed(other))
    elif change is Change.VRAM_LIMIT and (more := vram_taken(other) - vram_taken(plan)):
        taken = vram_taken(other)
        text = f"{format_bytes(taken)} of graphics memory" if taken else "no graphics card"
        yield Gain(change, text, more, _speed(other))
    elif change is Change.EXPERT_RAM and (more := other.expert_ram_bytes - plan.expert_ram_bytes):
        yield Gain(change, f"{format_bytes(other.expert_ram_bytes)} for experts", more, _speed(other))


def _notes(machine: Machine, footprint: Footprint, wishes: Wishes, plan: Plan) -> Iterator[str]:
    cards = [gpu for gpu in machine.gpus if gpu.is_usable]
    if cards and not plan.vram_slots:
        names = " and ".join(gpu.name for gpu in cards)
        stay, whose = ("stays", "its") if len(cards) == 1 else ("stay", "their")
        if allows_cards(wishes.vram_limit):
            needed = format_bytes(_least_vram(footprint, plan))
            what = f"the dense weights, the context and room for {LEAST_CARD_SLOTS} experts take {needed}"
            yield f"{names} {stay} unused: {what}, more than {whose} free memory holds."
        else:
            yield f"{names} {stay} unused: no graphics memory may be taken."
    if cards and machine.pinnable is not None and plan.vram_slots and machine.pinnable < plan.expert_ram_bytes:
        yield f"Of the RAM for experts, {format_bytes(machine.pinnable)} can be registered with the graphics card."
