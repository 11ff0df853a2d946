"""What a plan should give, in the meter's own units. Pure arithmetic over a plan, its footprint and measured rates."""

from dataclasses import dataclass, replace

from engine.meter import Link, LinkUse, Origin, Phase, Traffic
from engine.plan.footprint import Footprint, attention_macs, guest_slots
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


def predict(plan: Plan, footprint: Footprint, rates: Rates, locality: Locality, correction: Correction = NO_CORRECTION) -> Plan:
    """The same plan with one decoded token's traffic after 1K tokens of conversation, and ranges of tokens/s and of the time
    to the first token.

    The ranges span the interval of hit rates, what earlier answers here differed by, and a tenth for the computer's own moods.
    """
    context = min(CONTEXT, plan.context)
    traffic = [decoded(plan, footprint, rates, rate, context) for rate in locality.rates(resident_share(plan))]
    low, likely, high = (one.seconds * correction.factor for one in traffic)
    margin = _MARGIN * correction.spread
    prompts = [count for count in PROMPTS if count <= plan.context] or [plan.context]
    return replace(
        plan,
        predicted=traffic[1],
        predicted_tokens_per_second=(1 / (low * margin), 1 / (min(high, likely) / margin)),
        first_tokens=tuple(_first_token(plan, footprint, rates, count, margin) for count in prompts),
        ceilings_gbps=dict(rates.ceilings),
        limiting=limiting_link(traffic[1]),
        basis=locality.basis,
    )


def resident_share(plan: Plan) -> float:
    """Of all experts, those in memory while a token is computed: the slots, less those that are being read into."""
    total, slots = plan.num_layers * plan.num_experts, sum(plan.slots_per_layer)
    if slots >= total:
        return 1.0
    return max(0.0, slots - min(guest_slots(plan.top_k), slots) / 2) / total


def decoded(plan: Plan, footprint: Footprint, rates: Rates, hit_rate: float, context: int) -> Traffic:
    """One token after so many tokens of conversation."""
    looked_up, layers = plan.num_layers * plan.top_k, footprint.num_layers
    kv_bytes = replace(footprint, kv_type=plan.kv_type).kv_read_bytes(context)
    ram_bytes = footprint.dense_read_bytes + looked_up * plan.expert_bytes + kv_bytes
    missed = looked_up * (1 - hit_rate)
    blocks = footprint.block_bytes / rates.dense_gbps / 1e9 + looked_up * plan.expert_bytes / rates.expert_gbps / 1e9
    blocks += kv_bytes / rates.kv_gbps / 1e9 + layers * rates.layer_seconds
    around = rates.token_seconds + footprint.head_bytes / rates.dense_gbps / 1e9
    disk = missed * plan.expert_bytes / rates.disk_gbps / 1e9
    both = rates.together(blocks, disk)
    links = {Link.RAM: LinkUse(ram_bytes, blocks + around - rates.token_seconds, Origin.PREDICTED)}
    misses = round(missed)
    if misses:
        links[Link.DISK] = LinkUse(misses * plan.expert_bytes, disk, Origin.PREDICTED)
    return Traffic(Phase.DECODE, links, looked_up - misses, misses, max(0.0, both - blocks), around + both)


def prompt_seconds(plan: Plan, footprint: Footprint, rates: Rates, tokens: int, *, is_cold: bool) -> float:
    """Until the first token of an answer to a prompt of which nothing is in the KV cache.

    Cold: nothing has been read since the model was loaded; otherwise memory holds what it can.
    """
    seconds, total = 0.0, plan.num_layers * plan.num_experts
    slots, resident = sum(plan.slots_per_layer), 0.0 if is_cold else resident_share(plan)
    fresh = slots if is_cold else 0.0
    for start in range(0, tokens, plan.prefill_chunk):
        count = min(plan.prefill_chunk, tokens - start)
        touched = plan.num_experts * (1 - (1 - plan.top_k / plan.num_experts) ** count)
        missed = touched * (1 - resident)
        first = min(fresh, plan.num_layers * missed)
        seconds += _chunk_seconds(plan, footprint, rates, start, count, touched, missed)
        seconds += first * plan.expert_bytes * (1 / rates.fresh_gbps - 1 / rates.disk_gbps) / 1e9
        fresh -= first
        if is_cold and slots >= total:  # else the first layers have made room for the last ones
            resident += (1 - resident) * touched / plan.num_experts
    return seconds + rates.token_seconds + footprint.head_bytes / rates.dense_gbps / 1e9


def _chunk_seconds(
    plan: Plan, footprint: Footprint, rates: Rates, start: int, count: int, touched: float, missed: float
) -> float:
    """Layers wait for their experts: they are not guessed, since most are asked for anyway."""
    dense = footprint.block_bytes / at(rates.dense_by_tokens, count) / 1e9
    dense += _further_macs(footprint, start, count) / rates.attention_gmacs / 1e9
    per_expert = plan.expert_bytes / at(rates.experts_by_rows, count * plan.top_k / touched) / 1e9
    disk = missed * plan.expert_bytes / rates.disk_gbps / 1e9
    experts = max(touched * per_expert + missed * rates.first_seconds, disk + min(1.0, missed) * per_expert)
    return dense + plan.num_layers * experts


def _further_macs(footprint: Footprint, start: int, count: int) -> float:
    """Of attention to the `start` tokens before a chunk; that within it is part of the rates of batches."""

    def to(seen: int) -> float:
        heads, dim = footprint.heads, footprint.head_dim
        return attention_macs(count, seen + count, heads, dim) - attention_macs(count, count, heads, dim)

    windowed = sum(layers * to(min(start, window)) for window, layers in footprint.windows)
    compressed = sum(layers * count * kept.macs(start, footprint.heads) for kept, layers in footprint.compressed)
    return footprint.whole_layers * to(start) + windowed + compressed


def _first_token(plan: Plan, footprint: Footprint, rates: Rates, count: int, margin: float) -> FirstToken:
    warm, cold = (prompt_seconds(plan, footprint, rates, count, is_cold=is_cold) for is_cold in (False, True))
    return FirstToken(count, min(warm, cold) / margin, max(warm, cold) * margin)


def limiting_link(traffic: Traffic) -> Link:
    """Which link takes most of a token's time."""
    return max(traffic.links, key=lambda link: traffic.links[link].seconds)
