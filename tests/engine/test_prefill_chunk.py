"""How many tokens of a prompt are read at once: planned, priced, and done so; and what was measured here beside it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import Wishes
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.plan.forecast import Knowledge, Seen, forecast
from engine.plan.plan import make_plan
from engine.protocol import Change
from engine.units import GB
from tests.helpers.rates import QWEN3_30B, RATES
from tests.helpers.tiny import session_on, write_mixtral

MACHINE = Machine(32 * GB, 24 * GB, False)
KNOWN = Knowledge(RATES, "")


def test_a_prompt_is_read_in_chunks_as_wished(tmp_path: Path) -> None:
    folder, tokens = write_mixtral(tmp_path / "tiny", torch.float32), [1 + number % 50 for number in range(200)]
    logits = []
    for chunk, wanted in ((64, [64, 128, 192, 200]), (128, [128, 200]), (None, [200])):
        with session_on(folder, prefill_chunk=chunk) as (session, plan):
            counts: list[int] = []
            logits.append(session.sync(tokens, progress=lambda count, _: counts.append(count))[0])  # noqa: B023
            assert counts == wanted
            assert plan.prefill_chunk == (chunk or 512)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-4)


def test_larger_chunks_take_memory_and_bring_the_first_word_sooner() -> None:
    plans = [forecast(MACHINE, QWEN3_30B, Wishes(prefill_chunk=chunk), KNOWN) for chunk in (64, 256, 1024, 2048)]
    workspace = [plan.workspace_bytes for plan in plans]
    slots = [sum(plan.slots_per_layer) for plan in plans]
    first = [plan.first_tokens[-1].low for plan in plans]
    assert workspace == sorted(workspace)
    assert workspace[0] < workspace[-1]
    assert slots == sorted(slots, reverse=True)
    assert first == sorted(first, reverse=True)
    for plan in plans:
        assert plan.dense_bytes + plan.kv_bytes + plan.workspace_bytes + plan.expert_ram_bytes <= 24 * GB


def test_each_step_of_it_is_priced() -> None:
    plan = forecast(MACHINE, QWEN3_30B, Wishes(), KNOWN)
    prices = [gain for gain in plan.prices if gain.change is Change.PREFILL_CHUNK]
    assert [gain.amount > 0 for gain in prices] == [True, False]
    assert plan.predicted_tokens_per_second is not None
    assert prices[0].tokens_per_second <= plan.predicted_tokens_per_second <= prices[1].tokens_per_second
    most = forecast(MACHINE, QWEN3_30B, Wishes(prefill_chunk=2048), KNOWN)
    assert len([gain for gain in most.prices if gain.change is Change.PREFILL_CHUNK]) == 1, "there is no more"


@pytest.mark.parametrize("chunk", [0, -1, 63, 2049, 10**9])
def test_what_cannot_be_is_refused_with_the_nearest_that_can(chunk: int) -> None:
    with pytest.raises(EngineError, match="64 to 2048") as caught:
        make_plan(MACHINE, QWEN3_30B, Wishes(prefill_chunk=chunk))
    nearest = int(caught.value.hint.split()[-1].rstrip("."))
    assert make_plan(MACHINE, QWEN3_30B, Wishes(prefill_chunk=nearest)).prefill_chunk == nearest


def test_answers_given_here_stand_beside_the_prediction() -> None:
    plan = forecast(MACHINE, QWEN3_30B, Wishes(), KNOWN)
    assert plan.measured_tokens_per_second is None
    share = sum(plan.slots_per_layer) / (48 * 128)
    alike = ((share, 0.0, 7.0), (share, 0.0, 9.0), (share, 0.0, 8.0))
    known = replace(KNOWN, in_ram=Seen(speeds=(*alike, (share / 2, 0.0, 2.0), (share, 0.5, 1.0))))
    found = forecast(MACHINE, QWEN3_30B, Wishes(), known)
    assert (found.measured_tokens_per_second, found.measured_answers) == (8.0, 3), "those with as many experts in memory"
    less = forecast(MACHINE, QWEN3_30B, Wishes(expert_ram="3GB"), known)
    assert less.measured_tokens_per_second is None, "no answer was given so"
    unknown = forecast(MACHINE, QWEN3_30B, Wishes(), replace(known, rates=None, unknown="nothing"))
    assert unknown.measured_tokens_per_second == 8.0, "also where nothing can be foretold"
