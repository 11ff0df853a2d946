"""What a plan should give, in the meter's own units. Pure arithmetic over a plan and measured rates."""

from dataclasses import replace

from engine.hardware.machine import Rates
from engine.meter import Link, LinkUse, Origin, Phase, Traffic
from engine.protocol import Plan

_CONTEXT = 1024  # tokens of conversation at which the prediction holds
_LEFT_OUT = 1.25  # sampling, attention and the calls between kernels: 37 tokens/s measured where the bytes allow 46
_LOCALITY = 0.5  # at best, half of the uniform misses are spared by routing locality (published traces: lag-1 overlap 0.2-0.5)


def predict(plan: Plan, rates: Rates, dense_read_bytes: int) -> Plan:
    """The same plan with one decode token's traffic after 1K tokens of conversation, and a range of tokens/s.

    The slow end takes routing as uniform, nothing overlapped and a quarter on top of computing; the fast end takes recorded
    locality and full overlap.
    """
    looked_up = plan.num_layers * plan.top_k
    uniform = 1 - sum(plan.slots_per_layer) / (plan.num_layers * plan.num_experts)
    misses = round(looked_up * uniform)
    kv_bytes = plan.kv_bytes * min(_CONTEXT, plan.context) // plan.context
    ram_bytes = dense_read_bytes + looked_up * plan.expert_bytes + kv_bytes
    compute = ram_bytes / rates.compute_gbps / 1e9 + plan.num_layers * rates.layer_seconds
    disk = misses * plan.expert_bytes / rates.ceilings[Link.DISK] / 1e9
    slow, fast = _LEFT_OUT * compute + disk, max(compute, _LOCALITY * disk)
    links = {Link.RAM: LinkUse(ram_bytes, compute, Origin.PREDICTED)}
    if misses:
        links[Link.DISK] = LinkUse(misses * plan.expert_bytes, disk, Origin.PREDICTED)
    traffic = Traffic(Phase.DECODE, links, looked_up - misses, misses, max(0.0, slow - compute), slow)
    return replace(
        plan, predicted=traffic, predicted_tokens_per_second=(1 / slow, 1 / fast), ceilings_gbps=dict(rates.ceilings)
    )
