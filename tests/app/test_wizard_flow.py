"""The set-up without a window: steps, proposals, and what is said of computers and plans."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.machine_words import GOES_ON, facts, graphics_words, short
from app.core.plan_words import (
    Bar,
    LinkLine,
    context_price,
    experts_price,
    first_words,
    gain_rows,
    limit_words,
    picture,
    speed_words,
    vram_price,
    vram_room,
    vram_value,
    vram_words,
)
from app.core.settings import Settings
from app.core.wizard import Choice, Flow, Step, amount, begin, lengths, proposals, wished_bytes, wishes_of
from engine.hardware.probe import probe_all
from engine.protocol import (
    Change,
    DownloadJob,
    DownloadState,
    FirstToken,
    Fit,
    Gain,
    HubModel,
    Link,
    LinkUse,
    Machine,
    MachineFacts,
    MachineRates,
    Phase,
    Plan,
    Release,
    Tier,
    Traffic,
    Verdict,
    Wishes,
)
from tests.engine.machines import NAMES, computer

GB = 10**9
HUB, FOLDER = Choice("maker/Model", "Model"), Choice("/models/demo", "demo", is_here=True)
PLAN = Plan(
    "Model", "mixtral", "FP8", num_layers=10, num_experts=10, top_k=2, expert_bytes=GB // 10, slots_per_layer=(5,) * 10,
    dense_bytes=2 * GB, expert_ram_bytes=5 * GB, kv_bytes=GB, workspace_bytes=GB // 2, context=8192, model_bytes=12 * GB,
    sentence="",
    tiers=(
        Tier(Link.RAM, "RAM", 16 * GB, 2 * GB, GB, GB // 2, 5 * GB, 50),
        Tier(Link.DISK, "/dev/sda1", 100 * GB, model=12 * GB),
    ),
)  # fmt: skip
FORETOLD = replace(
    PLAN,
    predicted=Traffic(Phase.DECODE, {Link.RAM: LinkUse(4 * GB, 0.1), Link.DISK: LinkUse(GB // 2, 0.25)}, hits=15, misses=5),
    predicted_tokens_per_second=(3.0, 5.0), ceilings_gbps={Link.RAM: 40.0, Link.DISK: 2.0}, limiting=Link.DISK,
    first_tokens=(FirstToken(1024, 2.0, 6.0), FirstToken(8192, 61.0, 90.0)),
    gains=(Gain(Change.RAM, "8 GB more RAM", 8 * GB, (9.0, 11.0)),),
    prices=(
        Gain(Change.CONTEXT, "16384 tokens", GB, (2.6, 4.4)), Gain(Change.CONTEXT, "4096 tokens", -GB // 2, (3.1, 5.1)),
        Gain(Change.EXPERT_RAM, "less", -GB, (2.0, 4.0)),
    ),
)  # fmt: skip


@pytest.fixture(params=NAMES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return probe_all([tmp_path], computer(request.param, tmp_path))


def test_every_kind_of_computer_is_told_with_its_evidence(machine: Machine) -> None:
    rows = facts(machine)
    assert {"Graphics", "Memory", "Processor", "Drive"} <= {row.title for row in rows}
    assert all(row.text for row in rows)
    told = " ".join(f"{row.text} {row.detail} {row.trouble}" for row in rows) + graphics_words(machine)
    assert not re.search(r"None|nan|\b0 B\b", told.replace("None that programs", ""))
    for gpu in machine.gpus:
        assert gpu.name in told
        assert gpu.trouble in told
    for notice in machine.notices:
        assert notice in told
    assert short(machine)


def test_a_computer_without_a_usable_card_goes_on_and_says_why(machine: Machine) -> None:
    words = graphics_words(machine)
    if any(gpu.is_usable for gpu in machine.gpus):
        assert words == ""
    else:
        assert words.endswith(GOES_ON)
        assert len(words) > len(GOES_ON) + 20, "a reason stands before it"


def test_each_step_can_be_skipped_and_visited_again() -> None:
    flow = Flow()
    assert [step for step in Step if flow.can_enter(step)] == [Step.LOOK, Step.MEASURE, Step.CHOOSE]
    assert flow.go(Step.PLAN) == flow
    flow = flow.go(Step.CHOOSE)
    assert flow.detail(Step.MEASURE) == "Skipped"
    flow = flow.choose(HUB)
    assert flow.step is Step.PLAN
    assert [flow.back().step, flow.back().back().step] == [Step.CHOOSE, Step.MEASURE]
    assert Flow().back() == Flow()
    assert not flow.can_enter(Step.CHAT)
    flow = replace(flow, job=DownloadJob("maker/Model", "main", "", DownloadState.RUNNING))
    assert (flow.can_enter(Step.DOWNLOAD), flow.is_here) == (True, False)
    flow = replace(flow, job=replace(flow.job, state=DownloadState.DONE))  # type: ignore[type-var]
    assert flow.can_enter(Step.CHAT)
    assert Flow().choose(FOLDER).can_enter(Step.CHAT)


def test_wishes_of_one_model_do_not_follow_to_the_next(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "settings.json")
    settings.context = 4096
    flow = begin(settings).choose(HUB).wish(expert_ram="9000MB")
    assert flow.wishes == Wishes("9000MB", 4096)
    assert flow.go(Step.CHOOSE).choose(HUB).wishes == Wishes("9000MB", 4096)
    assert flow.choose(FOLDER).wishes == Wishes(None, 4096)
    outcome = flow.outcome()
    assert outcome is not None
    assert (outcome.expert_ram, outcome.context, outcome.choice) == ("9000MB", 4096, HUB)
    assert Flow().outcome() is None


def test_graphics_memory_is_a_wish_like_the_others(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "settings.json")
    assert wishes_of(settings).vram_limit is None
    settings.vram_limit = "50%"
    flow = begin(settings).choose(HUB)
    assert flow.wishes == Wishes(vram_limit="50%")
    for wish, written in ((amount(4_200_000_001), "4201MB"), (amount(0), "0"), (None, "")):
        outcome = flow.wish(vram_limit=wish).outcome()
        assert outcome is not None
        assert outcome.vram_limit == written
    settings.vram_limit = amount(0)
    assert wishes_of(settings) == Wishes(vram_limit="0")


def test_an_amount_is_enough_for_what_it_was_made_of_and_is_known_again() -> None:
    for nbytes in (1, 999_999, 1_000_000, 151_126_017, 11_400_000_000):
        found = wished_bytes(amount(nbytes))
        assert found is not None
        assert nbytes <= found < nbytes + 1_000_000
    assert wished_bytes("0") == wished_bytes(amount(0)) == 0
    assert [wished_bytes(text) for text in (None, "", "50%", "3GB", "800000000", "MB")] == [None] * 6


def test_details_of_the_steps() -> None:
    facts_ = MachineFacts(1, Machine(32 * GB, 30 * GB, False))
    rates = MachineRates(1, {Link.RAM: 43.21, Link.DISK: 2.7})
    flow = Flow(facts=facts_, rates=rates, choice=FOLDER)
    assert flow.detail(Step.LOOK) == "32.0 GB RAM"
    assert flow.detail(Step.MEASURE) == "RAM 43.2 · disk 2.7 GB/s"
    assert flow.detail(Step.DOWNLOAD) == "Already here"
    assert not replace(flow, rates=MachineRates(1, unknown="never")).is_done(Step.MEASURE)


def offer(name: str, billions: float, fit: Fit, speed: tuple[float, float] | None) -> HubModel:
    release = Release(f"maker/{name}", "FP8", int(billions * GB), Verdict(fit, "", speed))
    return HubModel(name, "mixtral", (release,), total_params=int(billions * 1e9), active_params=int(billions * 1e8))


def test_proposals_are_the_fastest_the_largest_that_runs_well_and_the_largest() -> None:
    models = (
        offer("toy", 8, Fit.RAM, (60, 80)), offer("quick", 20, Fit.RAM, (20, 25)), offer("middle", 30, Fit.DISK, (6, 10)),
        offer("large", 120, Fit.DISK, (2, 4)), offer("huge", 235, Fit.NO_SPACE, (9, 10)), offer("odd", 300, Fit.UNSUPPORTED, None),
    )  # fmt: skip
    assert [proposal.model.name for proposal in proposals(models)] == ["quick", "middle", "large"]
    assert [proposal.model.name for proposal in proposals(models[:1])] == ["toy"]
    assert proposals(models[4:]) == ()


def test_without_rates_proposals_go_by_what_fits() -> None:
    models = (offer("small", 8, Fit.RAM, None), offer("good", 20, Fit.RAM, None), offer("big", 90, Fit.DISK, None))
    assert [proposal.model.name for proposal in proposals(models)] == ["good", "big"]


def test_the_picture_has_each_tier_and_each_link_with_its_rate() -> None:
    first, ram, link, drive = picture(FORETOLD, None)
    assert isinstance(first, LinkLine)
    assert (first.link, first.rate) == (Link.RAM, "40.0 GB/s")
    assert isinstance(ram, Bar)
    assert ram.room == 16 * GB
    assert [(segment.label, segment.bytes) for segment in ram.segments] == [
        ("dense 2.0", 2 * GB), ("context 1.5", 3 * GB // 2), ("experts 5.0 · 50 %", 5 * GB),
    ]  # fmt: skip
    assert isinstance(link, LinkLine)
    assert (link.link, link.rate) == (Link.DISK, "2.0 GB/s")
    assert isinstance(drive, Bar)
    assert (drive.right, drive.room, drive.is_over) == ("100 GB free", 100 * GB, False)
    assert "experts 5.0 · 50 %" in ram.words


def test_a_card_comes_first_and_its_link_between() -> None:
    card = Tier(Link.VRAM, "a card", 12 * GB, 2 * GB, GB, 0, 3 * GB, 30)
    rows = picture(replace(FORETOLD, tiers=(card, *FORETOLD.tiers), ceilings_gbps={Link.PCIE: 24.6}), None)
    assert [row.name if isinstance(row, Bar) else row.link for row in rows] == ["VRAM", Link.PCIE, "RAM", Link.DISK, "Drive"]
    assert isinstance(rows[1], LinkLine)
    assert (rows[1].text, rows[1].rate) == ("PCIe", "24.6 GB/s")


ON_CARD = replace(
    FORETOLD, tiers=(Tier(Link.VRAM, "a card", 12 * GB, 2 * GB, GB, GB // 2, 5 * GB, 50), *FORETOLD.tiers), card_slots=(50,)
)  # fmt: skip


def _vram(*gains: tuple[int, float]) -> Plan:
    """Bytes more, and the middle of the tokens/s afterwards; they are 4.0 now."""
    prices = (Gain(Change.VRAM_LIMIT, "", nbytes, (middle - 1, middle + 1)) for nbytes, middle in gains)
    return replace(ON_CARD, prices=tuple(prices))


def test_graphics_memory_in_words() -> None:
    assert (vram_value(ON_CARD), vram_room(ON_CARD)) == ("8.50 GB", 12 * GB)
    assert vram_price(_vram((GB // 2, 4.6), (-GB, 3.0), (-17 * GB // 2, 1.5))) == "5.00 GB of experts · +1.2 tok/s per GB"
    assert vram_price(_vram((-GB, 3.0), (-17 * GB // 2, 1.5))) == "5.00 GB of experts · −2.5 tok/s without"
    assert vram_price(_vram((-17 * GB // 2, 4.02))) == "5.00 GB of experts", "no price to speak of"
    assert vram_price(replace(ON_CARD, prices=())) == "5.00 GB of experts", "nothing was measured"
    whole = replace(ON_CARD, tiers=(replace(ON_CARD.tiers[0], num_experts=100), *ON_CARD.tiers[1:]), prices=())
    assert vram_price(whole) == "all experts"
    limits = (None, "0", "50%", "2GB", "2000MB")
    told = [vram_words(limit, wished_bytes(limit)) for limit in limits]
    assert told == ["automatic", "none", "50%", "2GB", "2.00 GB"]


def test_without_graphics_memory_its_price_is_what_it_would_bring() -> None:
    more = Gain(Change.VRAM_LIMIT, "", 8 * GB, (7.0, 9.0))
    assert (vram_value(FORETOLD), vram_room(FORETOLD)) == ("none", 0)
    assert vram_price(replace(FORETOLD, prices=(more,))) == "+4.0 tok/s with 8.00 GB"
    assert vram_price(PLAN) == ""


def test_a_drive_that_is_too_small_says_so_unless_the_model_is_there() -> None:
    tiers = (FORETOLD.tiers[0], replace(FORETOLD.tiers[1], room=5 * GB))
    away, here = (picture(replace(FORETOLD, tiers=tiers), None, is_here=is_here)[-1] for is_here in (False, True))
    assert isinstance(away, Bar)
    assert isinstance(here, Bar)
    assert (away.is_over, here.is_over, here.room) == (True, False, 17 * GB)


def test_words_of_a_foretold_plan() -> None:
    assert speed_words(FORETOLD) == "3.0–5.0"
    assert first_words(FORETOLD) == "First word after 2.0–6.0 s at 1K tokens, 1 min 1 s to 1 min 30 s at 8K."
    assert limit_words(FORETOLD) == (
        "the drive", "For each token it brings 500 MB at up to 2.0 GB/s, because 25 % of its experts are not in memory."
    )  # fmt: skip
    assert gain_rows(FORETOLD) == (("8 GB more RAM", "3.0–5.0 → 9–11"),)
    assert context_price(FORETOLD) == "1.00 GB RAM · −0.5 tok/s per doubling"
    assert experts_price(FORETOLD) == "50 experts · +1.0 tok/s per GB"
    ram = replace(FORETOLD, limiting=Link.RAM)
    assert limit_words(ram) == ("memory", "Each token reads 4.00 GB at up to 40.0 GB/s.")


def test_without_a_prediction_no_speed_is_told() -> None:
    assert (speed_words(PLAN), first_words(PLAN), limit_words(PLAN), gain_rows(PLAN)) == ("", "", ("", ""), ())
    assert context_price(PLAN) == "1.00 GB RAM"
    assert experts_price(PLAN) == "50 experts"
    assert {row.rate for row in picture(PLAN, None) if isinstance(row, LinkLine)} == {"not measured yet"}


def test_context_is_offered_in_powers_of_two_with_the_limits_and_the_present_one() -> None:
    assert lengths(256, 3000, 700) == (256, 512, 700, 1024, 2048, 3000)
