"""The planner over invented machines: never above its budget, monotone, and each refusal names a wish that then works."""

import re
from dataclasses import replace

import pytest

from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.meter import Link, Origin
from engine.plan.locality import PUBLISHED, UNIFORM
from engine.plan.plan import make_plan
from engine.plan.predict import predict, resident_share
from engine.protocol import Plan
from engine.units import GB
from tests.helpers.rates import QWEN3_30B, RATES


def _machine(gigabytes: float) -> Machine:
    return Machine(int(gigabytes * GB), int(gigabytes * GB), False)


def _total(plan: Plan) -> int:
    return plan.dense_bytes + plan.kv_bytes + plan.workspace_bytes + plan.expert_ram_bytes


@pytest.mark.parametrize("gigabytes", [18, 24, 32, 64, 128, 512])
@pytest.mark.parametrize("context", [None, 512, 40_960])
def test_never_over_what_is_available(gigabytes: int, context: int | None) -> None:
    plan = make_plan(_machine(gigabytes), QWEN3_30B, Wishes(context=context))
    assert _total(plan) <= gigabytes * GB
    assert sum(plan.slots_per_layer) >= 2 * QWEN3_30B.top_k
    assert max(plan.slots_per_layer) - min(plan.slots_per_layer) <= 1


@pytest.mark.parametrize("gigabytes", [0.5, 1.5, 2])
def test_too_little_memory_is_refused_with_the_numbers(gigabytes: float) -> None:
    with pytest.raises(EngineError, match=r"2\.49 GB dense weights") as caught:
        make_plan(_machine(gigabytes), QWEN3_30B, Wishes())
    assert caught.value.code == "plan.too_little_memory"


def test_more_memory_never_means_fewer_experts_or_a_slower_forecast() -> None:
    plans = [predict(make_plan(_machine(size), QWEN3_30B, Wishes()), QWEN3_30B, RATES, PUBLISHED) for size in range(14, 90, 4)]
    slots = [sum(plan.slots_per_layer) for plan in plans]
    assert slots == sorted(slots)
    assert slots[-1] == 48 * 128
    speeds = [plan.predicted_tokens_per_second for plan in plans]
    lows, highs = [speed[0] for speed in speeds if speed], [speed[1] for speed in speeds if speed]
    assert lows == sorted(lows)
    assert highs == sorted(highs)
    assert all(low <= high for low, high in zip(lows, highs, strict=True))


def test_a_budget_below_the_floor_names_one_that_works() -> None:
    with pytest.raises(EngineError) as caught:
        make_plan(_machine(64), QWEN3_30B, Wishes(expert_ram="100MB"))
    assert caught.value.code == "plan.below_floor"
    remedy = re.search(r"(\S+) or more", caught.value.hint)
    assert remedy
    plan = make_plan(_machine(64), QWEN3_30B, Wishes(expert_ram=remedy[1]))
    assert sum(plan.slots_per_layer) == 16


def test_a_budget_beyond_the_machine_names_one_that_works() -> None:
    with pytest.raises(EngineError) as caught:
        make_plan(_machine(32), QWEN3_30B, Wishes(expert_ram="40GB"))
    remedy = re.search(r"(\S+) or less", caught.value.hint)
    assert remedy
    make_plan(_machine(32), QWEN3_30B, Wishes(expert_ram=remedy[1]))


@pytest.mark.parametrize("budget", ["", "lots", "-3GB", "150%", "3 parrots", "%", "nan%"])
def test_unreadable_budgets_are_named(budget: str) -> None:
    if not budget:
        make_plan(_machine(64), QWEN3_30B, Wishes(expert_ram=budget))  # empty is no wish
        return
    with pytest.raises(EngineError, match=re.escape(budget)):
        make_plan(_machine(64), QWEN3_30B, Wishes(expert_ram=budget))


@pytest.mark.parametrize("context", [0, -5, 1_000_000])
def test_an_impossible_context_is_refused(context: int) -> None:
    with pytest.raises(EngineError, match=str(context)):
        make_plan(_machine(64), QWEN3_30B, Wishes(context=context))


def test_the_sentence_says_what_decided() -> None:
    assert "All 6144 experts" in make_plan(_machine(128), QWEN3_30B, Wishes()).sentence
    assert "is free for them" in make_plan(_machine(32), QWEN3_30B, Wishes()).sentence
    assert "set to 25%" in make_plan(_machine(32), QWEN3_30B, Wishes(expert_ram="25%")).sentence
    assert "this model suggests" in make_plan(_machine(32), QWEN3_30B, Wishes(), "25%").sentence


def test_prediction_counts_bytes_like_the_meter() -> None:
    plan = make_plan(_machine(128), QWEN3_30B, Wishes(expert_ram="25%"))
    predicted = predict(plan, QWEN3_30B, RATES, UNIFORM).predicted
    assert predicted is not None
    assert predicted.hits + predicted.misses == 48 * 8
    assert predicted.misses == round(384 * (1 - resident_share(plan)))  # uniform routing finds what is there
    assert 288 <= predicted.misses <= 292  # three quarters, and the slots that are being read into
    assert predicted.links[Link.DISK].bytes == predicted.misses * QWEN3_30B.expert_bytes
    assert predicted.links[
        Link.RAM
    ].bytes == QWEN3_30B.dense_read_bytes + 384 * QWEN3_30B.expert_bytes + QWEN3_30B.kv_read_bytes(1024)
    assert {use.origin for use in predicted.links.values()} == {Origin.PREDICTED}


def test_a_container_is_named_as_the_limit() -> None:
    capped = replace(_machine(2), is_capped=True)
    with pytest.raises(EngineError, match="this container allows"):
        make_plan(capped, QWEN3_30B, Wishes())


@pytest.mark.parametrize("suggested", ["100%", "1KB", "nonsense"])
def test_a_suggestion_never_stands_in_the_way(suggested: str) -> None:
    plan = make_plan(_machine(24), QWEN3_30B, Wishes(), suggested)
    assert sum(plan.slots_per_layer) >= 2 * QWEN3_30B.top_k
    assert _total(plan) <= 24 * GB
