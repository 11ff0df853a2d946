"""What a plan should give, in the meter's own units. Pure arithmetic over a plan, its footprint and measured rates."""

from dataclasses import dataclass, replace
from math import comb

from engine.card_rates import CardRates
from engine.meter import Link, LinkUse, Origin, Phase, Traffic
from engine.plan.footprint import Footprint, attention_macs, experts_resident, slots_kept
from engine.plan.locality import Locality
from engine.protocol import FirstToken, Plan
from engine.rates import Rates, at

CONTEXT = 1024  # tokens of conversation at which the prediction holds
PROMPTS = (1024, 8192)
_MARGIN = 1.1  # of every figure: a computer is not the same from one minute to the next


@dataclass(frozen=True, slots=True)
class Correction:
    """What earlier answers say of predictions made here: measured seconds are `factor` of the predicted ones, give or take
    `spread` (at least 1)."""

    factor: float = 1.0
    spread: float = 1.0


NO_CORRECTION = Correction()


def predict(
    plan: Plan,
    footprint: Footprint,
    rates: Rates,
    locality: Locality,
    correction: Correction = NO_CORRECTION,
    card: CardRates | None = None,
) -> Plan:
    """The same plan with one decoded token's traffic after 1K tokens of conversation, and ranges of tokens/s and of the time
    to the first token. `card` is for a plan with slots in VRAM.

    The ranges span the interval of hit rates, what earlier answers here differed by, and a tenth for the computer's own moods.
    """
    context = min(CONTEXT, plan.context)
    shares = zip(locality.rates(vram_share(plan)), locality.rates(resident_share(plan)), strict=True)
    traffic = [decoded(plan, footprint, rates, Hits(*pair), context, card) for pair in shares]
    seconds = [one.seconds * correction.factor for one in traffic]  # a slow card may have fewer hits take less
    margin = _MARGIN * correction.spread
    prompts = [count for count in PROMPTS if count <= plan.context] or [plan.context]
    ceilings = rates.ceilings if card is None else rates.ceilings | card.ceilings
    return replace(
        plan,
        predicted=traffic[1],
        predicted_tokens_per_second=(1 / (max(seconds) * margin), margin / min(seconds)),
        first_tokens=tuple(_first_token(plan, footprint, rates, count, margin, card) for count in prompts),
        ceilings_gbps=dict(ceilings),
        limiting=limiting_link(traffic[1]),
        basis=locality.basis,
    )


@dataclass(frozen=True, slots=True)
class Hits:
    """Shares of a token's experts: those in VRAM, and those in any memory."""

    in_vram: float
    in_memory: float


def resident_share(plan: Plan) -> float:
    """Of all experts, those in memory while a token is computed."""
    total = plan.num_layers * plan.num_experts
    return experts_resident(plan.card_slots, sum(plan.slots_per_layer), plan.top_k, total) / total


def vram_share(plan: Plan) -> float:
    """Of all experts, those that a card keeps."""
    total = plan.num_layers * plan.num_experts
    return slots_kept(plan.card_slots, plan.top_k, total) / total


def decoded(plan: Plan, footprint: Footprint, rates: Rates, hits: Hits, context: int, card: CardRates | None = None) -> Traffic:
    """One token after so many tokens of conversation."""
    looked_up = plan.num_layers * plan.top_k
    kv_bytes = replace(footprint, kv_type=plan.kv_type).kv_read_bytes(context)
    of = rates if card is None else card
    dense = footprint.block_bytes / of.dense_gbps / 1e9 + kv_bytes / of.kv_gbps / 1e9
    layer_seconds = of.layer_seconds
    if card is not None and hits.in_vram == 1 and len(plan.card_slots) == 1:  # several cards need the host
        layer_seconds = card.resident_layer_seconds
    dense += footprint.num_layers * layer_seconds
    head = footprint.head_bytes / of.dense_gbps / 1e9
    fixed_bytes = footprint.dense_read_bytes + kv_bytes
    if card is None:
        experts = looked_up * plan.expert_bytes / rates.expert_gbps / 1e9
        links = {Link.RAM: _use(fixed_bytes + looked_up * plan.expert_bytes, dense + experts + head)}
    else:
        served = _served(plan, card, hits.in_vram)
        experts = plan.num_layers * served.seconds
        in_vram = looked_up - plan.num_layers * served.computed
        on_card = in_vram * plan.expert_bytes / card.expert_gbps / 1e9
        links = {Link.VRAM: _use(fixed_bytes + round(in_vram) * plan.expert_bytes, dense + on_card + head)}
        lanes = card.lanes_for(plan.expert_bytes)
        for link, count, lane in ((Link.PCIE, served.gathered, lanes.link), (Link.RAM, served.computed, lanes.cpu)):
            if number := round(plan.num_layers * count):
                links[link] = _use(number * plan.expert_bytes, number * lane.each)
    missed = looked_up * (1 - hits.in_memory)
    disk = missed * plan.expert_bytes / rates.disk_gbps / 1e9
    both = rates.together(dense + experts, disk)
    misses = round(missed)
    if misses:
        links[Link.DISK] = _use(misses * plan.expert_bytes, disk)
    stall, seconds = max(0.0, both - dense - experts), of.token_seconds + head + both
    vram_hits = round(looked_up * hits.in_vram) if card is not None else 0
    return Traffic(Phase.DECODE, links, looked_up - misses, misses, stall, seconds, vram_hits=vram_hits)


def _use(nbytes: int, seconds: float) -> LinkUse:
    return LinkUse(nbytes, seconds, Origin.PREDICTED)


@dataclass(frozen=True, slots=True)
class _Served:
    """A layer's experts with a card: seconds until all are done, and how many misses went either way, on average."""

    seconds: float
    gathered: float
    computed: float


def _served(plan: Plan, card: CardRates, hit_rate: float) -> _Served:
    """Averaged over how many of a token's experts one layer misses, as if they were independent of one another.

    The card computes its hits while the misses are served; what was gathered it computes afterwards.
    """
    top_k, each, lanes = plan.top_k, plan.expert_bytes / card.expert_gbps / 1e9, card.lanes_for(plan.expert_bytes)
    seconds = gathered = computed = 0.0
    for misses in range(top_k + 1):
        chance = comb(top_k, misses) * (1 - hit_rate) ** misses * hit_rate ** (top_k - misses)
        count = lanes.best(misses)
        hits = (top_k - misses) * each
        seconds += chance * (max(hits, lanes.step(count, misses - count)) + count * each)
        gathered += chance * count
        computed += chance * (misses - count)
    return _Served(seconds, gathered, computed)


def prompt_seconds(
    plan: Plan, footprint: Footprint, rates: Rates, tokens: int, *, is_cold: bool, card: CardRates | None = None
) -> float:
    """Until the first token of an answer to a prompt of which nothing is in the KV cache.

    Cold: nothing has been read since the model was loaded; otherwise memory holds what it can.
    """
    seconds, total = 0.0, plan.num_layers * plan.num_experts
    slots, resident = sum(plan.slots_per_layer), 0.0 if is_cold else resident_share(plan)
    in_vram = 0.0 if is_cold else vram_share(plan)
    fresh = slots if is_cold else 0.0
    of = rates if card is None else card
    for start in range(0, tokens, plan.prefill_chunk):
        count = min(plan.prefill_chunk, tokens - start)
        touched = plan.num_experts * (1 - (1 - plan.top_k / plan.num_experts) ** count)
        missed = touched * (1 - resident)
        first = min(fresh, plan.num_layers * missed)
        seconds += _chunk_seconds(plan, footprint, rates, start, count, touched, missed, card, touched * (1 - in_vram))
        seconds += first * plan.expert_bytes * (1 / rates.fresh_gbps - 1 / rates.disk_gbps) / 1e9
        fresh -= first
        if is_cold and slots >= total:  # else the first layers have made room for the last ones
            resident += (1 - resident) * touched / plan.num_experts
    return seconds + of.token_seconds + footprint.head_bytes / of.dense_gbps / 1e9


def _chunk_seconds(
    plan: Plan,
    footprint: Footprint,
    rates: Rates,
    start: int,
    count: int,
    touched: float,
    missed: float,
    card: CardRates | None,
    gathered: float,
) -> float:
    """Layers wait for their experts: they are not guessed, since most are asked for anyway. A card computes some while the next
    are on their way over its link."""
    of = rates if card is None else card
    dense = footprint.block_bytes / at(of.dense_by_tokens, count) / 1e9
    dense += _further_macs(footprint, start, count) / of.attention_gmacs / 1e9
    per_expert = plan.expert_bytes / at(of.experts_by_rows, count * plan.top_k / touched) / 1e9
    disk = missed * plan.expert_bytes / rates.disk_gbps / 1e9
    experts = max(touched * per_expert + missed * rates.first_seconds, disk + min(1.0, missed) * per_expert)
    if card is not None:
        experts = max(experts, gathered * card.lanes_for(plan.expert_bytes).link.each)
    return dense + plan.num_layers * experts


def _further_macs(footprint: Footprint, start: int, count: int) -> float:
    """Of attention to the `start` tokens before a chunk; that within it is part of the rates of batches."""

    def to(seen: int) -> float:
        heads, dim = footprint.heads, footprint.head_dim
        return attention_macs(count, seen + count, heads, dim) - attention_macs(count, count, heads, dim)

    windowed = sum(layers * to(min(start, window)) for window, layers in footprint.windows)
    if (choice := footprint.choice) is not None:
        scored = choice.index_layers * choice.index_heads * choice.index_dim * count * start
        return footprint.whole_layers * to(min(start, choice.most)) + scored
    compressed = sum(layers * count * kept.macs(start, footprint.heads) for kept, layers in footprint.compressed)
    return footprint.whole_layers * to(start) + windowed + compressed


def _first_token(
    plan: Plan, footprint: Footprint, rates: Rates, count: int, margin: float, card: CardRates | None
) -> FirstToken:
    warm, cold = (prompt_seconds(plan, footprint, rates, count, is_cold=is_cold, card=card) for is_cold in (False, True))
    return FirstToken(count, min(warm, cold) / margin, max(warm, cold) * margin)


def limiting_link(traffic: Traffic) -> Link:
    """Which link takes most of a token's time."""
    return max(traffic.links, key=lambda link: traffic.links[link].seconds)
