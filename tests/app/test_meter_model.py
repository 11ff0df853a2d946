"""The meter's arithmetic, against values worked out by hand."""

from dataclasses import replace

import pytest
from PySide6.QtWidgets import QApplication

from app.core.reading import Limit
from app.item_models.meter import MeterModel, found_in, limit, percentile
from engine.protocol import Link, LinkUse, Meter, Origin, Phase, Plan, Started, Traffic

GB = 10**9


def token(seconds: float = 0.1, stall: float = 0.0, hits: int = 0, misses: int = 0, **links: tuple[int, float]) -> Traffic:
    uses = {
        Link(name): LinkUse(count, busy, Origin.DERIVED if name == "ram" else Origin.MEASURED)
        for name, (count, busy) in links.items()
    }
    return Traffic(Phase.DECODE, uses, hits, misses, stall, seconds)


def plan(predicted: Traffic | None = None) -> Plan:
    return Plan(
        model_name="m", architecture="a", weight_format="bf16", num_layers=2, num_experts=8, top_k=2, expert_bytes=GB // 100,
        slots_per_layer=(4, 4), dense_bytes=1, expert_ram_bytes=1, kv_bytes=1, workspace_bytes=1, context=4096, model_bytes=1,
        sentence="s", predicted=predicted, predicted_tokens_per_second=(8.0, 11.0),
        ceilings_gbps={Link.RAM: 50.0, Link.DISK: 7.0},
    )  # fmt: skip


@pytest.fixture
def model(qapp: QApplication) -> MeterModel:
    return MeterModel()


def test_rate_bytes_and_waiting(model: MeterModel) -> None:
    model.add(Meter(1, (token(0.1, 0.02, ram=(2 * GB, 0.05)), token(0.3, 0.04, ram=(4 * GB, 0.1)))))
    reading = model.reading()
    assert reading.tokens_per_second == pytest.approx(2 / 0.4)
    assert reading.bytes_per_token == 3 * GB
    assert reading.waited_seconds == pytest.approx(0.03)
    assert reading.bars == ({Link.RAM: 2 * GB}, {Link.RAM: 4 * GB})


def test_only_the_last_sixty_tokens_count(model: MeterModel) -> None:
    model.add(Meter(1, tuple(token(9.0) for _ in range(40))))
    model.add(Meter(1, tuple(token(0.01 * number) for number in range(1, 61))))
    reading = model.reading()
    assert len(reading.bars) == 60
    assert reading.p50_seconds == pytest.approx(0.30)
    assert reading.p95_seconds == pytest.approx(0.57)


def test_links_are_the_last_ten_tokens_against_ceiling_and_prediction(model: MeterModel) -> None:
    model.set_plan(plan(token(ram=(4 * GB, 0.1), disk=(GB, 0.25))))
    slow = tuple(token(ram=(GB, 1.0)) for _ in range(20))
    now = tuple(token(ram=(3 * GB, 0.1), disk=(GB // 2, 0.1)) for _ in range(10))
    model.add(Meter(1, slow + now))
    links = {link.link: link for link in model.reading().links}
    assert links[Link.RAM].gbps == pytest.approx(30.0)
    assert links[Link.RAM].ceiling_gbps == 50.0
    assert links[Link.RAM].predicted_gbps == pytest.approx(40.0)
    assert links[Link.RAM].origin is Origin.DERIVED
    assert links[Link.DISK].gbps == pytest.approx(5.0)
    assert links[Link.DISK].origin is Origin.MEASURED
    assert not links[Link.PCIE].is_known
    assert model.reading().predicted_bytes == 5 * GB
    assert model.reading().predicted_range == (8.0, 11.0)


def limited_by(*records: Traffic) -> Link | None:
    found = limit(records)
    assert found is not None
    return found.link


def test_computing_is_limited_by_the_memory_that_it_reads() -> None:
    assert limit([token(0.1, ram=(1, 0.07), disk=(1, 0.03))]) == Limit(Link.RAM, "experts computed on the CPU")
    assert limited_by(token(0.1, ram=(1, 0.02), vram=(1, 0.06))) is Link.VRAM


def test_waiting_for_most_of_the_time_is_the_slowest_links() -> None:
    assert limited_by(token(0.1, stall=0.06, ram=(1, 0.03), disk=(1, 0.08))) is Link.DISK
    assert limited_by(token(0.1, stall=0.06, vram=(1, 0.03), pcie=(1, 0.07))) is Link.PCIE
    assert limited_by(token(0.1, stall=0.06, vram=(1, 0.03), pcie=(1, 0.01), disk=(1, 0.06))) is Link.DISK


def test_a_drive_that_is_busy_while_computing_goes_on_limits_nothing() -> None:
    assert limited_by(token(0.1, stall=0.02, ram=(1, 0.07), disk=(1, 0.1))) is Link.RAM
    assert limited_by(token(0.1, stall=0.0, ram=(1, 0.03), disk=(1, 0.1))) is None


def test_waiting_is_not_counted_twice() -> None:
    """Stalled for 40 % of the token: the stall is a part of the drive's 45 %, not 40 % more."""
    assert limited_by(token(0.1, stall=0.04, ram=(1, 0.055), disk=(1, 0.045))) is Link.RAM


def test_no_link_is_blamed_for_what_computing_takes() -> None:
    assert limited_by(token(0.1, ram=(1, 0.02), disk=(1, 0.01))) is None
    assert limited_by(token(0.1, stall=0.04, ram=(1, 0.02), disk=(1, 0.04))) is None


def test_nothing_is_claimed_without_tokens(model: MeterModel) -> None:
    reading = model.reading()
    assert reading.tokens_per_second is None
    assert reading.limit is None
    assert reading.found is None
    assert reading.p50_seconds is None


def test_found_without_a_gpu_is_ram_or_disk() -> None:
    assert found_in([token(hits=6, misses=2, ram=(1, 0.1))]) == {Link.RAM: 0.75, Link.DISK: 0.25}


def test_found_with_a_gpu_tells_its_hits_from_those_of_ram() -> None:
    record = replace(token(hits=8, misses=2, vram=(100, 0.1), ram=(40, 0.1), disk=(20, 0.1)), vram_hits=5)
    assert found_in([record]) == {Link.VRAM: 0.5, Link.RAM: 0.3, Link.DISK: 0.2}


def test_percentile_by_nearest_rank() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0
    assert percentile([], 0.5) is None


def test_prompt_has_its_own_reading(model: MeterModel) -> None:
    model.start(Started(1, prompt_tokens=1000, reused_tokens=200))
    before = model.reading().prompt
    assert before is not None
    assert before.tokens_per_second is None
    assert before.share == pytest.approx(0.2)
    model.advance(500)
    assert shown(model) == (300, 0.5, 0, None)
    model.add(Meter(1, (chunk(300, 2.0, GB),)))
    assert shown(model) == (300, 0.5, GB, 150.0)
    assert model.reading().tokens_per_second is None, "reading a prompt is no decoding"
    model.add(Meter(1, (token(),)))
    assert model.reading().prompt is None


def chunk(tokens: int, seconds: float, count: int) -> Traffic:
    return Traffic(Phase.PREFILL, {Link.DISK: LinkUse(count, seconds / 2)}, seconds=seconds, tokens=tokens)


def shown(model: MeterModel) -> tuple[int, float, int, float | None]:
    prompt = model.reading().prompt
    assert prompt is not None
    return prompt.read_tokens, prompt.share, prompt.bytes, prompt.tokens_per_second


def test_a_prompt_is_the_sum_of_its_chunks_so_far(model: MeterModel) -> None:
    """As the engine tells it: progress after each chunk, their records together and somewhat later."""
    model.start(Started(1, prompt_tokens=2000, reused_tokens=400))
    model.advance(800)
    model.add(Meter(1, (chunk(400, 1.0, GB),)))
    assert shown(model) == (400, 0.4, GB, 400.0)
    model.advance(1200)
    model.advance(1600)
    assert shown(model) == (1200, 0.8, GB, 400.0), "the rate is that of the chunks whose time is known"
    model.add(Meter(1, (chunk(400, 3.0, 3 * GB), chunk(400, 1.0, GB))))
    assert shown(model) == (1200, 0.8, 5 * GB, 240.0)
    disk = next(link for link in model.reading().links if link.link is Link.DISK)
    assert disk.gbps == pytest.approx(2.0)
    model.add(Meter(1, (chunk(400, 1.0, GB),)))
    assert shown(model)[:2] == (1600, 1.0), "the records tell how far it is, too"
    model.start(Started(2, prompt_tokens=10, reused_tokens=0))
    assert shown(model) == (0, 0.0, 0, None)


def test_another_model_forgets_the_figures(model: MeterModel) -> None:
    model.add(Meter(1, (token(),)))
    model.set_plan(plan())
    assert model.reading().bars == ()


def test_a_link_faster_than_its_ceiling_raises_it(model: MeterModel) -> None:
    model.set_plan(replace(plan(), ceilings_gbps={Link.DISK: 1.0}))
    model.add(Meter(1, (token(disk=(3 * GB, 1.0)), token(disk=(GB, 1.0)))))
    disk = next(link for link in model.reading().links if link.link is Link.DISK)
    assert disk.ceiling_gbps == pytest.approx(3.0)


def test_a_derived_figure_raises_no_ceiling(model: MeterModel) -> None:
    model.set_plan(replace(plan(), ceilings_gbps={Link.RAM: 1.0}))
    model.add(Meter(1, (token(ram=(3 * GB, 1.0)),)))
    ram = next(link for link in model.reading().links if link.link is Link.RAM)
    assert (ram.gbps, ram.ceiling_gbps) == (3.0, 1.0)
