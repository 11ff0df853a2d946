"""The central promise: where experts live never changes the answer, and the meter counts exactly what that cost."""

from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.experts.run import ExpertRunner
from engine.kernels.kernels import Kernels
from engine.meter import Link, Phase, Traffic
from engine.parts import open_parts
from engine.session import Session
from engine.source import inspect
from engine.tiers.disk import DiskReader
from tests.helpers.tiny import kernels_named, session_on, write_mixtral

PROMPT = torch.randint(3, 259, (70,), generator=torch.Generator().manual_seed(3)).tolist()


@dataclass(frozen=True)
class Case:
    folder: Path
    kernels: Kernels


def _run(
    case: Case, slots_per_layer: int | None = None, expert_ram: str | None = None
) -> tuple[list[torch.Tensor], list[int], list[Traffic], int]:
    """Prefill and 24 greedy steps: logits, ids, traffic, bytes of an expert."""
    with session_on(case.folder, slots_per_layer, case.kernels, expert_ram=expert_ram) as (session, plan):
        logits, traffic = session.sync(PROMPT)
        outputs, ids, records = [logits], [int(logits.argmax())], [traffic]
        for _ in range(24):
            logits, traffic = session.step(ids[-1])
            outputs.append(logits)
            ids.append(int(logits.argmax()))
            records.append(traffic)
        return outputs, ids, records, plan.expert_bytes


@pytest.fixture(scope="module", params=["float32", "bfloat16", "float16"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mixtral(tmp_path_factory.mktemp("placement") / "model", getattr(torch, request.param))


@pytest.fixture(scope="module", params=["reference", "native"])
def case(request: pytest.FixtureRequest, folder: Path) -> Case:
    return Case(folder, kernels_named(request.param))


@pytest.mark.parametrize("slots", [2, 3, 5, 8])
def test_slots_do_not_change_logits(case: Case, slots: int) -> None:
    expected, expected_ids, _, _ = _run(case, expert_ram="100%")
    outputs, ids, _, _ = _run(case, slots_per_layer=slots)
    assert ids == expected_ids
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)  # sums are taken in routing order: not even rounding differs


@pytest.mark.parametrize("budget", ["100%", "50%", "34%"])
def test_disk_bytes_are_misses_times_expert_bytes(case: Case, budget: str) -> None:
    _, _, records, expert_bytes = _run(case, expert_ram=budget)
    for record in records:
        moved = record.links[Link.DISK].bytes if Link.DISK in record.links else 0
        assert moved == record.misses * expert_bytes + record.unasked_bytes
        assert record.links[Link.RAM].bytes >= (record.hits + record.misses) * expert_bytes
    assert [record.phase for record in records] == [Phase.PREFILL] + [Phase.DECODE] * 24
    assert all(record.hits + record.misses == 3 * 2 for record in records[1:]), "3 layers look up 2 experts each"


def test_everything_resident_reads_each_expert_once(case: Case) -> None:
    _, _, records, _ = _run(case, expert_ram="100%")
    assert sum(record.misses for record in records) <= 3 * 8


def test_a_smaller_budget_never_misses_less(case: Case) -> None:
    misses = [sum(record.misses for record in _run(case, slots_per_layer=slots)[2]) for slots in (8, 5, 3, 2)]
    assert misses == sorted(misses)
    assert misses[0] < misses[-1]


@pytest.mark.parametrize(("slots", "length"), list(product((2, 8), (0, 1, 17, 69))))
def test_a_rewound_session_answers_like_a_fresh_one(case: Case, slots: int, length: int) -> None:
    with session_on(case.folder, slots, case.kernels) as (session, _):
        expected, _ = session.sync(PROMPT)
        session.step(5)
        session.rewind(length)
        again, _ = session.sync(PROMPT)
        torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-5)
        assert session.tokens == PROMPT


@pytest.mark.parametrize("slots", [4, 6])
def test_memory_taken_away_and_given_back_in_an_answer_changes_nothing(
    case: Case, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the slots go after some tokens and come back later, as a falling and a rising limit would have it."""
    expected, _, _, _ = _run(case, expert_ram="100%")
    monkeypatch.setattr("engine.experts.budget._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("engine.experts.budget._STEP_BYTES", 1)
    short, plenty = [0] * 3, [1 << 40] * 3
    rooms = iter([*plenty, *short, *plenty, *short, *plenty, *plenty, *plenty, *plenty, *plenty])
    with session_on(case.folder, slots, case.kernels, room=lambda: next(rooms)) as (session, _):
        outputs, counts = [session.sync(PROMPT)[0]], []
        for _ in range(24):
            outputs.append(session.step(int(outputs[-1].argmax()))[0])
            counts.append(session.num_slots)
    assert min(counts) == 8 < max(counts) == 3 * slots, counts
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_a_warm_start_changes_nothing_but_the_misses(case: Case) -> None:
    expected, _, _, _ = _run(case, slots_per_layer=6)
    with session_on(case.folder, 6, case.kernels) as (session, _):
        session.sync(PROMPT)
        for token in PROMPT:
            session.step(token)
        heat = session.heat()
    with session_on(case.folder, 6, case.kernels, heat=heat) as (session, _):
        logits, traffic = session.sync(PROMPT)
    torch.testing.assert_close(logits, expected[0], atol=0, rtol=0)
    assert traffic.hits >= 10, "the 18 slots less 8 guests held what was used most"


def test_a_right_guess_is_read_once_and_a_wrong_one_is_counted_apart(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every expert of the next layer is guessed: whatever routing asks for was read already, and each at most once."""
    expected, _, _, _ = _run(case, expert_ram="100%")
    monkeypatch.setattr(
        "engine.models.lookahead.NextRouter.__call__",
        lambda _, layer, x: [(layer + 1, expert) for expert in range(8)] if layer < 2 else [],
    )
    monkeypatch.setattr("engine.experts.trust.Trust.should_guess", lambda _: True)
    read: list[tuple[int, int]] = []
    genuine = ExpertRunner._submit

    def submit(self: ExpertRunner, expert: tuple[int, int], slot: int) -> None:
        read.append(expert)
        genuine(self, expert, slot)

    monkeypatch.setattr(ExpertRunner, "_submit", submit)
    with session_on(case.folder, 4, case.kernels) as (session, plan):
        outputs = [session.sync(PROMPT)[0]]
        for _ in range(24):
            read.clear()
            logits, traffic = session.step(int(outputs[-1].argmax()))
            outputs.append(logits)
            assert len(set(read)) == len(read), "an expert was read twice for one token"
            assert traffic.links[Link.DISK].bytes == traffic.misses * plan.expert_bytes + traffic.unasked_bytes
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_an_embedding_left_on_disk_changes_no_logit(case: Case) -> None:
    with session_on(case.folder, 8, case.kernels) as (session, plan):
        outputs = [session.sync(PROMPT)[0], *(session.step(token)[0] for token in PROMPT[:12])]
    source = inspect(case.folder)
    kept = replace(plan, dense_bytes=source.footprint.dense_bytes - 1)  # any less than all of them leaves it there
    reader = DiskReader()
    try:
        session = Session(open_parts(source, kept, reader, case.kernels), reader)
        assert session.sync(PROMPT)[1].links[Link.DISK].bytes > 0
        session.rewind(0)
        rows = [session.sync(PROMPT)[0], *(session.step(token)[0] for token in PROMPT[:12])]
    finally:
        reader.close()
    for ours, theirs in zip(rows, outputs, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_kernels_agree(folder: Path) -> None:
    reference, native = (_run(Case(folder, kernels_named(name)), 3) for name in ("reference", "native"))
    for ours, theirs in zip(native[0], reference[0], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert native[1] == reference[1]


def test_experts_cut_by_a_shard_end_give_the_same_logits(folder: Path, tmp_path: Path) -> None:
    """Real shards end in the middle of an expert, and in another place of the next one."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    for copy in range(1, 4):
        cut = tmp_path / f"cut{copy}"
        cut.mkdir()
        for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            (cut / file).write_bytes((folder / file).read_bytes())
        bounds = [0, len(names) // 3 + copy, 2 * len(names) // 3 - copy, len(names)]
        for shard, (first, last) in enumerate(pairwise(bounds)):
            save_file({name: tensors[name] for name in names[first:last]}, cut / f"model-{shard + 1:05d}-of-00003.safetensors")
        case = Case(folder, kernels_named("reference"))
        for slots in (2, 8):
            expected, ours = _run(case, slots), _run(Case(cut, case.kernels), slots)
            assert ours[1] == expected[1]
            for left, right in zip(ours[0], expected[0], strict=True):
                torch.testing.assert_close(left, right, atol=0, rtol=0)
