"""Attention over what an index chooses: that the choice matters, in one pass or many, and where rows of two kinds lie."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import KvType, Wishes
from engine.hardware.machine import Machine
from engine.kernels.kept import keep, numbers
from engine.kv.cache import KvCache
from engine.plan.footprint import Choice
from engine.plan.plan import make_plan
from engine.plan.predict import prompt_seconds
from engine.units import GB
from tests.golden.parity import Golden, make_golden
from tests.helpers.rates import QWEN3_30B, RATES
from tests.helpers.tiny import kernels_named, session_on


@pytest.fixture(scope="module", params=["deepseek_v32", "glm_moe_dsa, shared choices"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    pytest.importorskip("transformers", reason="the reference for parity is not installed")
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("chunk", [1, 7, 13])
def test_a_prompt_in_chunks_and_its_reuse(golden: Golden, chunk: int, kernels: str) -> None:
    with session_on(golden.folder, kernels=kernels_named(kernels)) as (session, _):
        session._parts.chunk = chunk
        assert _difference(session.sync(golden.tokens[:30])[0], golden.logits[29]) < 1e-4
        changed = [*golden.tokens[:18], 1, 2, 3]
        assert session.reusable(changed) == 18
        session.sync(changed)
        assert _difference(session.sync(golden.tokens)[0], golden.logits[-1]) < 1e-4


@pytest.mark.filterwarnings("ignore")
def test_the_choice_matters(golden: Golden, tmp_path: Path) -> None:
    """Else a wrong one would go unnoticed. While all are chosen, it is the reference's answer too."""
    for file in golden.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"index_topk": 40}))
    with session_on(tmp_path) as (session, _):
        assert (
            _difference(session.sync(golden.tokens[: config["index_topk"]])[0], golden.logits[config["index_topk"] - 1]) < 1e-4
        )
        assert _difference(session.sync(golden.tokens)[0], golden.logits[-1]) > 0.05


def test_a_token_far_from_the_start_reads_little() -> None:
    """GLM-5's sizes in BF16: 2048 rows of 576 numbers and all keys of the index, in each of 78 layers."""
    choice = Choice(2048, 576, 78, 32, 128)
    glm = replace(QWEN3_30B, num_layers=78, kv_layers=78, num_heads=64, num_kv_heads=1, head_dim=352, choice=choice)
    assert glm.kv_read_bytes(1000) == 78 * 2 * 1000 * (576 + 128)
    assert glm.kv_read_bytes(100_000) == 78 * 2 * (2048 * 576 + 100_000 * 128)
    assert glm.kv_bytes(100_000, 512) == 78 * 2 * 100_000 * (576 + 128), "kept is all"
    every = replace(glm, choice=None)
    plan = make_plan(Machine(32 * GB, 24 * GB, False), glm, Wishes(context=32768))
    near, far = (prompt_seconds(plan, shape, RATES, 32768, is_cold=False) for shape in (glm, every))
    assert near < far
    assert prompt_seconds(plan, glm, RATES, 512, is_cold=False) == prompt_seconds(plan, every, RATES, 512, is_cold=False)


@pytest.mark.parametrize("kv_type", KvType)
def test_rows_of_two_kinds_do_not_meet(kv_type: KvType) -> None:
    """The published sizes: 576 numbers and 128 are as much as the plan counts, a key and a value of 352."""
    cache, torch_rows = KvCache(1, 1, 352, 20, kv_type=kv_type), [torch.randn(20, 1, size) for size in (576, 128)]
    rows, start = cache.several(0, 2048, 576, 128)
    assert start == 0
    assert sum(part.nbytes for part in rows) == 20 * 2 * kv_type.row_bytes(352)
    for part, written in zip(rows, torch_rows, strict=True):
        keep(part, 0, written)
    for part, written in zip(cache.several(0, 2048, 576, 128)[0], torch_rows, strict=True):
        torch.testing.assert_close(numbers(part)[0].float(), written[:, 0], atol=0.02, rtol=0.01)
