"""A limit on graphics memory: kept on every computer, monotone, refused with a remedy that works, and priced."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import KvType, Wishes
from engine.errors import EngineError
from engine.hardware.machine import Gpu, GpuKind, Machine
from engine.hardware.probe import probe_all
from engine.judge import Facts, Ground, judge, plan_facts
from engine.meter import Link
from engine.plan.footprint import Footprint, experts_resident
from engine.plan.forecast import fit_of, forecast, vram_taken
from engine.plan.plan import least_vram, make_plan, vram_rooms
from engine.plan.predict import vram_share
from engine.protocol import Change, Fit, Gain, HubModel, Load, Plan, PlanFor, Release, WishLimits, decode, encode
from engine.units import GB, MB
from tests.engine.machines import NAMES, computer
from tests.engine.test_computers import COMPUTERS, FOOTPRINTS, KNOWN
from tests.helpers.rates import QWEN3_30B

LIMITS = ("0", "0%", "1MB", "3GB", "4 GiB", "30%", "50%", "9GB", "80%", "100%", "17GB", "900GB")


def _machine(*free: float, ram: float = 64) -> Machine:
    gpus = tuple(Gpu(f"Card {number}", GpuKind.NVIDIA, vram_free=int(room * GB)) for number, room in enumerate(free))
    return Machine(int(ram * GB), int(ram * GB), False, gpus=gpus)


ONE, TWO = _machine(12), _machine(8, 12)


def _plan(machine: Machine, limit: str | None, footprint: Footprint = QWEN3_30B, **wishes: object) -> Plan:
    return make_plan(machine, footprint, Wishes(vram_limit=limit, **wishes))  # type: ignore[arg-type]


def _or_none(machine: Machine, limit: str | None, footprint: Footprint) -> Plan | None:
    """None for a limit that is too little, whose remedies must both work, and for a model that has no room here."""
    try:
        return _plan(machine, limit, footprint)
    except EngineError as refusal:
        error = refusal
    if error.code == "plan.vram_limit":
        remedy = re.search(r"(\d+MB) or more", error.hint)
        assert remedy, error.hint
        assert _plan(machine, remedy[1], footprint).vram_slots >= 2
    return None


def _computers(tmp_path: Path) -> Iterator[tuple[str, Machine]]:
    yield from COMPUTERS.items()
    for name in NAMES:
        yield name, probe_all([], computer(name, tmp_path / name))


def test_never_over_the_limit_on_any_computer(tmp_path: Path) -> None:
    seen = 0
    for name, machine in _computers(tmp_path):
        rooms = vram_rooms(machine)
        for footprint in FOOTPRINTS:
            for limit, allowed in (("0", 0), ("35%", sum(rooms) * 35 // 100), ("6500MB", 6500 * MB), ("20GB", 20 * GB)):
                plan = _or_none(machine, limit, footprint)
                if plan is None:
                    continue
                assert vram_taken(plan) <= allowed, (name, footprint.name, limit)
                assert all(tier.room <= allowed for tier in plan.tiers if tier.link is Link.VRAM), "the picture's bar"
                assert sum(tier.used for tier in plan.tiers if tier.link is Link.RAM) <= machine.ram_available
                seen += plan.vram_slots > 0
    assert seen > 50, "some of them use a card"


@pytest.mark.parametrize("machine", [ONE, TWO, _machine(5, 5, 5), COMPUTERS["two unlike cards"]])
def test_a_larger_limit_never_gives_fewer_experts_on_cards(machine: Machine) -> None:
    most = sum(vram_rooms(machine))
    held = [0]
    for size in range(0, most + GB, 97 * MB):
        plan = _or_none(machine, f"{size}B", QWEN3_30B)
        held.append(held[-1] if plan is None else plan.vram_slots)
        assert held[-1] >= held[-2], size
    assert held[-1] == _plan(machine, None).vram_slots > held[1] == 0


def test_amounts_and_shares_are_of_what_a_model_may_take() -> None:
    (room,) = vram_rooms(ONE)
    whole = _plan(ONE, None)
    assert _plan(ONE, "") == _plan(ONE, "100%") == _plan(ONE, "900GB") == whole
    half = _plan(ONE, "50%")
    assert half == _plan(ONE, f"{room // 2}B")
    assert room // 2 - QWEN3_30B.slot_bytes < vram_taken(half) <= room // 2, "as many experts as there is room for"
    assert (half.context, half.kv_type, half.prefill_chunk) == (whole.context, whole.kv_type, whole.prefill_chunk)


@pytest.mark.parametrize("none", ["0", "0GB", "0%", "0.0 MiB"])
def test_none_is_as_if_there_were_no_card_and_says_so(none: str) -> None:
    plan, without = _plan(ONE, none), make_plan(replace(ONE, gpus=()), QWEN3_30B, Wishes())
    assert plan == without
    assert plan.vram_slots == vram_taken(plan) == 0
    told = forecast(ONE, QWEN3_30B, Wishes(vram_limit=none), KNOWN)
    assert told.notes == ("Card 0 stays unused: no graphics memory may be taken.",)
    assert forecast(ONE, QWEN3_30B, Wishes(), KNOWN).notes == ()


def test_too_little_is_refused_with_remedies_that_work() -> None:
    with pytest.raises(EngineError) as caught:
        _plan(ONE, "2GB")
    error = caught.value
    assert error.code == "plan.vram_limit"
    assert "2GB of graphics memory is too little" in error.text
    enough = re.search(r"to (\d+)MB or more", error.hint)
    assert enough
    assert _plan(ONE, f"{enough[1]}MB").vram_slots >= 2
    with pytest.raises(EngineError):
        _plan(ONE, f"{int(enough[1]) - 1}MB")
    assert "or to 0" in error.hint
    assert _plan(ONE, "0").vram_slots == 0


def test_two_cards_share_a_limit_the_roomier_one_first() -> None:
    large, small = vram_rooms(TWO)
    held = _plan(TWO, f"{large // 2}B").card_slots
    assert len(held) == 1, "no room is left for the other"
    assert held[0] >= 2
    both = _plan(TWO, f"{large + small // 2}B").card_slots
    assert both[0] == _plan(TWO, None).card_slots[0], "the first is full"
    assert 2 <= both[1] < _plan(TWO, None).card_slots[1]
    assert both[1] * QWEN3_30B.slot_bytes <= small // 2 + QWEN3_30B.slot_bytes


def test_cards_without_slots_count_for_nothing() -> None:
    """As many experts as one card alone, whatever other cards a limit leaves unused."""
    least = least_vram(QWEN3_30B, 8192, 512)
    one, three = _plan(ONE, f"{least}B"), _plan(_machine(12, 4, 4), f"{least}B")
    assert one.card_slots == three.card_slots == (2,)
    assert vram_share(three) == vram_share(one) > 0
    assert three.sentence == one.sentence
    assert three.sentence.startswith("1 of 6144 experts in VRAM")


def test_an_expert_that_is_left_over_goes_to_the_next_card() -> None:
    """Together with one of the first, as a card with a single slot could not be used."""
    total, fixed = QWEN3_30B.experts_total, least_vram(QWEN3_30B, 8192, 512) - 2 * QWEN3_30B.slot_bytes
    room = fixed + (total - 1) * QWEN3_30B.slot_bytes + MB
    plan = _plan(_machine(room / 0.92 / GB, 24, ram=128), None)
    assert plan.card_slots == (total - 2, 2)
    assert fit_of(plan) is Fit.VRAM


def test_ram_that_is_wished_for_is_taken_though_the_card_holds_everything() -> None:
    machine = _machine(120, ram=128)
    assert sum(_plan(machine, None).slots_per_layer) == QWEN3_30B.floor_slots
    assert _plan(machine, None, expert_ram="20GB").expert_ram_bytes > 19 * GB


def test_a_verdict_never_reads_all_of_the_experts_from_memory_and_some_from_disk() -> None:
    seen = set()
    for ram in range(16, 80):
        machine = _machine(12, ram=ram)
        plan = _plan(machine, None)
        seen.add(fit_of(plan))
        held = experts_resident(plan.card_slots, sum(plan.slots_per_layer), plan.top_k, QWEN3_30B.experts_total)
        assert (held == QWEN3_30B.experts_total) == (fit_of(plan) is not Fit.DISK)
        assert ("read from disk" in plan.sentence) == (fit_of(plan) is Fit.DISK)
        verdict = judge(QWEN3_30B, 0, Ground(machine, None, 1 << 50))
        assert ("others are read from disk" in verdict.text) == (fit_of(plan) is Fit.DISK)
    assert seen == {Fit.DISK, Fit.VRAM_RAM}


@pytest.mark.parametrize("machine", [ONE, TWO, _machine(11.3, 4.9, 7.77)])
def test_a_limit_of_what_is_taken_now_changes_nothing(machine: Machine) -> None:
    """As a whole number of MB, which the window and the prices write."""
    for limit in (None, "45%", "4444444444"):
        plan = _plan(machine, limit)
        again = _plan(machine, f"{-(-vram_taken(plan) // MB)}MB")
        assert (again.card_slots, again.slots_per_layer) == (plan.card_slots, plan.slots_per_layer)


@pytest.mark.parametrize("text", ["lots", "-3GB", "150%", "3 parrots", "%", "nan%"])
@pytest.mark.parametrize("machine", [ONE, replace(ONE, gpus=())])
def test_unreadable_limits_are_named_with_a_card_and_without(text: str, machine: Machine) -> None:
    with pytest.raises(EngineError, match=re.escape(text)):
        _plan(machine, text)


@pytest.mark.parametrize("name", ["no card", "Apple", "laptop 16", "a card without figures", "a card that does not answer"])
def test_without_a_usable_card_a_limit_changes_nothing(name: str) -> None:
    for footprint in FOOTPRINTS[:5]:
        plans = [_or_none(COMPUTERS[name], limit, footprint) for limit in (None, *LIMITS)]
        assert all(plan == plans[0] for plan in plans)
        if plans[0] is not None:
            told = forecast(COMPUTERS[name], footprint, Wishes(vram_limit="0"), KNOWN)
            assert not [gain for gain in told.prices if gain.change is Change.VRAM_LIMIT]


def test_a_context_that_was_shortened_for_want_of_ram_may_fit_a_card() -> None:
    """It is planned there as it would be if that context had been asked for."""
    model = replace(QWEN3_30B, num_kv_heads=64)
    machine = _machine(11, ram=10)
    plan = make_plan(machine, model, Wishes())
    assert plan.context < 8192
    assert plan == make_plan(machine, model, Wishes(context=plan.context))
    assert plan.vram_slots


def _of(prices: tuple[Gain, ...], change: Change) -> list[Gain]:
    return [gain for gain in prices if gain.change is change]


def test_prices_of_the_limit_are_a_step_either_way_and_doing_without() -> None:
    whole = forecast(ONE, QWEN3_30B, Wishes(), KNOWN)
    less, none = _of(whole.prices, Change.VRAM_LIMIT)
    assert less.amount < 0
    assert none.text == "no graphics card"
    assert none.amount == -vram_taken(whole)
    assert none.tokens_per_second == _without(whole.context).predicted_tokens_per_second
    part = forecast(ONE, QWEN3_30B, Wishes(vram_limit="6GB"), KNOWN)
    amounts = [gain.amount for gain in _of(part.prices, Change.VRAM_LIMIT)]
    assert amounts[0] > 0 > amounts[1] > amounts[2] == -vram_taken(part)
    nothing = forecast(ONE, QWEN3_30B, Wishes(vram_limit="0"), KNOWN)
    (more,) = _of(nothing.prices, Change.VRAM_LIMIT)
    assert more.amount == vram_taken(whole)
    assert more.tokens_per_second == whole.predicted_tokens_per_second


def _without(context: int) -> Plan:
    return forecast(replace(ONE, gpus=()), QWEN3_30B, Wishes(context=context), KNOWN)


def test_the_least_that_works_has_a_price_below_any_other() -> None:
    """A whole step less would be refused."""
    least = _limits(ONE).least_vram
    plan = forecast(ONE, QWEN3_30B, Wishes(vram_limit=f"{least // MB + 200}MB"), KNOWN)
    _, down, none = _of(plan.prices, Change.VRAM_LIMIT)
    assert vram_taken(plan) + down.amount >= least
    assert none.text == "no graphics card"


@pytest.mark.parametrize("limit", ["0", "6GB", "50%"])
def test_prices_of_other_wishes_keep_the_limit(limit: str) -> None:
    wishes = Wishes(vram_limit=limit, context=4096)
    plan = forecast(ONE, QWEN3_30B, wishes, KNOWN)
    for change, asked in (
        (Change.CONTEXT, replace(wishes, context=8192)),
        (Change.KV_TYPE, replace(wishes, kv_type=KvType.FP32)),
        (Change.PREFILL_CHUNK, replace(wishes, prefill_chunk=1024)),
    ):
        speed = forecast(ONE, QWEN3_30B, asked, KNOWN).predicted_tokens_per_second
        assert speed in [gain.tokens_per_second for gain in _of(plan.prices, change)], change
    sizes = [plan.expert_ram_bytes + gain.amount for gain in _of(plan.prices, Change.EXPERT_RAM)]
    assert sizes
    for size, gain in zip(sizes, _of(plan.prices, Change.EXPERT_RAM), strict=True):
        other = forecast(ONE, QWEN3_30B, replace(wishes, expert_ram=f"{-(-size // MB)}MB"), KNOWN)
        assert gain.tokens_per_second == other.predicted_tokens_per_second


def test_prices_keep_what_the_model_suggests_for_its_experts() -> None:
    plan = forecast(ONE, QWEN3_30B, Wishes(), KNOWN, "25%")
    (none,) = [gain for gain in plan.prices if gain.text == "no graphics card"]
    other = forecast(ONE, QWEN3_30B, Wishes(vram_limit="0", context=plan.context), KNOWN, "25%")
    assert none.tokens_per_second == other.predicted_tokens_per_second


def _judged(machine: Machine, wishes: Wishes, footprint: Footprint = QWEN3_30B) -> tuple[Plan | None, WishLimits]:
    facts = Facts(HubModel("m", "qwen3_moe", (Release("m/m", "BF16", 1),)), 1, 0, footprint)
    model, limits = plan_facts(facts, Ground(machine, None, 10**12, Path("/")), wishes)
    verdict = model.releases[0].verdict
    assert verdict is not None
    assert limits is not None
    return verdict.plan, limits


def _limits(machine: Machine, wishes: Wishes = Wishes()) -> WishLimits:  # noqa: B008 - frozen
    return _judged(machine, wishes)[1]


@pytest.mark.parametrize("machine", [ONE, TWO, _machine(24), _machine(120)])
@pytest.mark.parametrize("wishes", [
    Wishes(), Wishes(vram_limit="0"), Wishes(vram_limit="100MB"), Wishes(context=20_000, kv_type=KvType.Q8), Wishes(vram_limit="50%"),
])  # fmt: skip
def test_between_its_limits_every_amount_can_be_planned(machine: Machine, wishes: Wishes) -> None:
    limits = _limits(machine, wishes)
    assert 0 < limits.least_vram < limits.most_vram
    steps = [limits.least_vram + (limits.most_vram - limits.least_vram) * number // 7 for number in range(8)]
    for size in (0, *steps):
        plan, _ = _judged(machine, replace(wishes, vram_limit=f"{-(-size // MB)}MB"))
        assert plan is not None, size
        assert (plan.vram_slots > 0) == (size > 0)
    most, whole = (
        _judged(machine, replace(wishes, vram_limit=limit))[0] for limit in (f"{limits.most_vram // MB + 1}MB", None)
    )
    assert most is not None
    assert whole is not None
    assert most.card_slots == whole.card_slots
    refused, _ = _judged(machine, replace(wishes, vram_limit=f"{limits.least_vram // MB}MB"))
    assert refused is None or limits.least_vram % MB == 0


def test_a_limit_that_is_refused_leaves_the_other_limits_as_they_are() -> None:
    plan, refused = _judged(ONE, Wishes(vram_limit="1GB"))
    assert plan is None
    assert refused == _limits(ONE)


@pytest.mark.parametrize("machine", [replace(ONE, gpus=()), _machine(3), COMPUTERS["a card that does not answer"]])
def test_without_a_card_that_serves_there_is_nothing_to_choose(machine: Machine) -> None:
    limits = _limits(machine, Wishes(vram_limit="5GB"))
    assert (limits.least_vram, limits.most_vram) == (0, 0)


def test_it_travels_over_the_wire() -> None:
    wishes = Wishes(vram_limit="50%")
    for message in (Load(1, "m", wishes), PlanFor(2, "m/m", "", "", wishes, 0)):
        assert decode(encode(message)) == message
