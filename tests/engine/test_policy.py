"""The engine's policy against the published traces' table, made-up routing, and its own definition."""

from functools import cache
from pathlib import Path

import pytest

from engine.experts.heat import hottest
from engine.experts.policy import Heat
from engine.experts.replay import POLICIES, bounds, heat_contender, replay
from engine.experts.trace import Geometry, Routing, read_trace
from tests.helpers.routes import EXPERTS, geometry, topics, uniform

ROUTES = Path(__file__).parents[3] / "shared" / "data" / "routes"
needs_routes = pytest.mark.skipif(not ROUTES.is_dir(), reason="the published traces are not here (../shared/data/routes)")
CAPACITIES = (0.05, 0.1, 0.2, 0.3, 0.5)
TABLE = {  # of the traces' own README: per capacity
    "qwen": {
        "global-lru": (0.38, 0.50, 0.73, 0.86, 0.92),
        "layer-lru": (0.38, 0.52, 0.73, 0.85, 0.91),
        "layer-lfu": (0.38, 0.57, 0.76, 0.86, 0.91),
        "belady": (0.57, 0.74, 0.87, 0.91, 0.92),
    },
    "gptoss": {
        "global-lru": (0.44, 0.58, 0.71, 0.72, 0.72),
        "layer-lru": (0.44, 0.57, 0.70, 0.72, 0.72),
        "layer-lfu": (0.43, 0.58, 0.70, 0.72, 0.72),
        "belady": (0.63, 0.71, 0.72, 0.72, 0.72),
    },
}


@cache
def recorded(name: str) -> tuple[Geometry, tuple[Routing, ...]]:
    trace = read_trace(ROUTES / f"{name}.route.csv")
    return trace.geometry, trace.decoded()


def hit_rate(name: str, capacity: float, policy: str) -> float:
    shape, routings = recorded(name)
    num_slots = int(len(shape.layers) * shape.num_experts * capacity)
    if policy == "belady":
        return bounds(routings, num_slots).free
    return replay(shape, routings, POLICIES[policy](shape, num_slots)).hit_rate


@needs_routes
@pytest.mark.parametrize("name", TABLE)
def test_other_policies_and_the_bound_agree_with_the_table_published_with_the_traces(name: str) -> None:
    for policy, published in TABLE[name].items():
        measured = [hit_rate(name, capacity, policy) for capacity in CAPACITIES]
        assert measured == pytest.approx(published, abs=0.008 if policy == "belady" else 0.0051), policy


@needs_routes
@pytest.mark.parametrize("name", TABLE)
def test_the_policy_is_no_worse_than_the_best_of_the_table(name: str) -> None:
    for place, capacity in enumerate(CAPACITIES):
        best = max(published[place] for policy, published in TABLE[name].items() if policy != "belady")
        assert round(hit_rate(name, capacity, "heat"), 2) >= best, f"{capacity:.0%}"


@needs_routes
def test_the_policy_is_within_8_points_of_the_bound_on_average() -> None:
    gaps = [
        hit_rate(name, capacity, "belady") - hit_rate(name, capacity, "heat") for name in TABLE for capacity in (0.1, 0.2, 0.3)
    ]
    assert sum(gaps) / len(gaps) < 0.08


@needs_routes
@pytest.mark.parametrize("name", TABLE)
def test_below_one_tokens_demand_hits_fall_with_capacity_and_do_not_collapse(name: str) -> None:
    """Where a global LRU finds nothing at all on Qwen3's trace, though a share of the experts is always there."""
    shape, routings = recorded(name)
    demand = len(shape.layers) * shape.top_k
    slots = [int(demand * share) for share in (0.2, 0.4, 0.6, 0.8, 1)]
    rates = [replay(shape, routings, heat_contender(shape, count)).hit_rate for count in slots]
    assert rates == sorted(rates)
    total = len(shape.layers) * shape.num_experts
    assert all(rate > 5 * count / total for rate, count in zip(rates, slots, strict=True))


@needs_routes
@pytest.mark.parametrize(("name", "capacity"), [("qwen", 0.3), ("qwen", 0.5), ("gptoss", 0.2), ("gptoss", 0.5)])
def test_a_warm_start_misses_at_most_half_as_much_in_32_tokens(name: str, capacity: float) -> None:
    shape, routings = recorded(name)
    half = len(routings) // 2
    num_slots = int(len(shape.layers) * shape.num_experts * capacity)
    policy = Heat(shape.layers, shape.num_experts)
    for routing in routings[:half]:
        policy.touch(routing.layer, routing.experts)
    following = routings[half : half + 32 * len(shape.layers)]
    cold = replay(shape, following, heat_contender(shape, num_slots))
    warm = replay(shape, following, heat_contender(shape, num_slots, policy.heat()))
    assert warm.missed_bytes <= cold.missed_bytes / 2


def test_a_warm_start_on_another_topic_costs_little() -> None:
    shape, (before, after) = geometry(8, 6), (topics(8, 200, seed=1), topics(8, 32, seed=2))
    policy = Heat(shape.layers, EXPERTS)
    for routing in before:
        policy.touch(routing.layer, routing.experts)
    cold, warm = (replay(shape, after, heat_contender(shape, 256, heat)) for heat in (None, policy.heat()))
    assert warm.missed_bytes < 1.03 * cold.missed_bytes


@pytest.mark.parametrize("capacity", [0.1, 0.2, 0.3])
def test_over_changing_topics_the_policy_beats_recency_and_frequency_and_follows_each_switch(capacity: float) -> None:
    layers, steps, topic_steps = 8, 2400, 400
    shape, routings = geometry(layers, 6), topics(layers, steps, topic_steps=topic_steps)
    num_slots = int(layers * EXPERTS * capacity)
    others = [replay(shape, routings, POLICIES[policy](shape, num_slots)).hit_rate for policy in ("layer-lru", "layer-lfu")]
    contender = heat_contender(shape, num_slots)
    window = 50 * layers
    rates = [replay(shape, routings[first : first + window], contender).hit_rate for first in range(0, len(routings), window)]
    assert sum(rates) / len(rates) > max(others) + 0.01
    settled = [rate for place, rate in enumerate(rates) if place % (topic_steps // 50)]  # all windows but those after a switch
    assert min(settled) > max(settled) - 0.12


@pytest.mark.parametrize("capacity", [0.25, 0.5])
def test_uniform_routing_hits_as_often_as_the_capacity_says(capacity: float) -> None:
    layers = 48
    shape, routings = geometry(layers, 8), uniform(layers, 60, 8)
    contender = heat_contender(shape, int(layers * EXPERTS * capacity))
    replay(shape, routings[: len(routings) // 3], contender)
    assert replay(shape, routings[len(routings) // 3 :], contender).hit_rate == pytest.approx(capacity, abs=0.01)


def test_heat_is_what_its_definition_says_over_thousands_of_tokens() -> None:
    """Summed over all uses, which the policy never does; growth is scaled back several times on the way."""
    half_life, steps = 5.0, 2000
    policy = Heat([0], EXPERTS, half_life)
    routings = topics(1, steps)
    for routing in routings:
        policy.touch(0, routing.experts)
    expected = [0.0] * EXPERTS
    for age, routing in enumerate(reversed(routings)):
        for expert in routing.experts:
            expected[expert] += 2 ** (-age / half_life)
    heat = policy.heat()
    assert [heat.get((0, expert), 0.0) for expert in range(EXPERTS)] == pytest.approx(expected, rel=1e-9, abs=1e-30)
    by_heat = sorted(range(EXPERTS), key=lambda expert: -expected[expert])
    assert hottest(heat, 5) == [(0, expert) for expert in by_heat[:5]]


def test_the_last_tokens_experts_stay_before_others_of_more_heat() -> None:
    policy = Heat([0], 4)
    for expert in (0, 1, 2):
        policy.admit(0, expert)
    for experts in ([0, 1], [0, 1], [0, 1], [0, 1], [2, 3]):
        policy.touch(0, experts)
    assert policy.victim(0) in ((0, 0), (0, 1))
    policy.touch(0, [0, 3])
    assert policy.victim(0) == (0, 2)


def test_slots_move_to_the_layer_that_gains_from_them() -> None:
    """Layer 0 uses 40 experts alike, layer 1 always the same two: equal shares would leave most of layer 1's idle."""
    shape = geometry(2, 2)
    contender = heat_contender(shape, 40)
    for step in range(400):
        contender.use(0, [step * 2 % 40, (step * 2 + 1) % 40])
        contender.use(1, [0, 1])
    shares = [sum(contender.cache.lookup(layer, expert) is not None for expert in range(EXPERTS)) for layer in (0, 1)]
    assert shares[0] >= 36
