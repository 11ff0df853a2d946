"""The central promise: where experts live never changes the answer, and the meter counts exactly what that cost."""

from itertools import product
from pathlib import Path

import pytest
import torch

from engine.meter import Link, Phase, Traffic
from tests.helpers.tiny import session_on, write_mixtral

PROMPT = torch.randint(3, 259, (70,), generator=torch.Generator().manual_seed(3)).tolist()


def _run(folder: Path, slots_per_layer: int | None = None, expert_ram: str | None = None) -> tuple[list[torch.Tensor], list[int], list[Traffic], int]:
    """Prefill and 24 greedy steps: logits, ids, traffic, bytes of an expert."""
    with session_on(folder, slots_per_layer, expert_ram=expert_ram) as (session, plan):
        logits, traffic = session.sync(PROMPT)
        outputs, ids, records = [logits], [int(logits.argmax())], [traffic]
        for _ in range(24):
            logits, traffic = session.step(ids[-1])
            outputs.append(logits)
            ids.append(int(logits.argmax()))
            records.append(traffic)
        return outputs, ids, records, plan.expert_bytes


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("placement") / "model", getattr(torch, request.param))


@pytest.mark.parametrize("slots", [2, 3, 5, 8])
def test_slots_do_not_change_logits(checkpoint: Path, slots: int) -> None:
    expected, expected_ids, _, _ = _run(checkpoint, expert_ram="100%")
    outputs, ids, _, _ = _run(checkpoint, slots_per_layer=slots)
    assert ids == expected_ids
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)  # sums are taken in routing order: not even rounding differs


@pytest.mark.parametrize("budget", ["100%", "50%", "30%", "25%"])
def test_disk_bytes_are_misses_times_expert_bytes(checkpoint: Path, budget: str) -> None:
    _, _, records, expert_bytes = _run(checkpoint, expert_ram=budget)
    for record in records:
        moved = record.links[Link.DISK].bytes if Link.DISK in record.links else 0
        assert moved == record.misses * expert_bytes
        assert record.links[Link.RAM].bytes >= (record.hits + record.misses) * expert_bytes
    assert [record.phase for record in records] == [Phase.PREFILL] + [Phase.DECODE] * 24
    assert all(record.hits + record.misses == 3 * 2 for record in records[1:]), "3 layers look up 2 experts each"


def test_everything_resident_reads_each_expert_once(checkpoint: Path) -> None:
    _, _, records, _ = _run(checkpoint, expert_ram="100%")
    assert sum(record.misses for record in records) <= 3 * 8


def test_a_smaller_budget_never_misses_less(checkpoint: Path) -> None:
    misses = [sum(record.misses for record in _run(checkpoint, slots_per_layer=slots)[2]) for slots in (8, 5, 3, 2)]
    assert misses == sorted(misses), "LRU is a stack algorithm: more slots cannot miss more"
    assert misses[0] < misses[-1]


@pytest.mark.parametrize(("slots", "length"), list(product((2, 8), (0, 1, 17, 69))))
def test_a_rewound_session_answers_like_a_fresh_one(checkpoint: Path, slots: int, length: int) -> None:
    with session_on(checkpoint, slots) as (session, _):
        expected, _ = session.sync(PROMPT)
        session.step(5)
        session.rewind(length)
        again, _ = session.sync(PROMPT)
        torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
        assert session.tokens == PROMPT
