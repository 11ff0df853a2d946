"""What is kept of tokens: in three types, and of a window only that; against transformers over contexts many windows long."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import KvType
from engine.kv.cache import KvCache
from engine.meter import Phase
from engine.plan.footprint import rows_kept
from engine.session import Cancelled, Session
from engine.source import inspect
from tests.golden.parity import ROWS, Golden, differences, differences_in_bf16, make_golden
from tests.helpers.tiny import kernels_named, session_on

pytest.importorskip("transformers", reason="the reference for parity is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
_TOKENS = 400
_WINDOWED = ("gpt_oss, BF16 layout", "gemma4", "mixtral, window, tied", "deepseek_v4")
_CHUNK = 64  # the least: a window of 7 then keeps 71 rows of 4096


@pytest.fixture(scope="module", params=_WINDOWED)
def long(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden(request.param, tmp_path_factory.mktemp("long"), _TOKENS)


def _open(golden: Golden, kernels: str = "reference", **wishes: Any) -> Any:
    return session_on(golden.folder, kernels=kernels_named(kernels), **{"context": 4096, "prefill_chunk": _CHUNK} | wishes)


def _check(golden: Golden, position: int, logits: torch.Tensor) -> None:
    wanted = golden.logits[position]
    assert float((logits - wanted).norm() / wanted.norm()) < 1e-4, f"at position {position}"


def _decode(golden: Golden, session: Session, upto: int) -> None:
    for position in range(len(session.tokens), upto):
        _check(golden, position, session.step(golden.tokens[position])[0])


@pytest.mark.parametrize("kernels", ["reference", "native"])
def test_many_windows_equal_the_reference(long: Golden, kernels: str) -> None:
    """Chunks across the edges of the rows, then tokens until the rows have moved several times more."""
    with _open(long, kernels) as (session, _):
        kv = session._parts.kv
        for end in (50, 51, 64 + 51, 150):
            _check(long, end - 1, session.sync(long.tokens[:end])[0])
        _decode(long, session, _TOKENS)
        assert len(kv._windows._layers) == sum(window is not None for window in kv._sees), "no layer with a window keeps all"
        assert all(own.first > 300 for own in kv._windows._layers.values()), "nothing has moved"


def test_rewind_within_and_beyond_what_is_kept(long: Golden) -> None:
    with _open(long) as (session, _):
        session.sync(long.tokens[:256])
        _decode(long, session, 330)
        for length in (328, 290, 256, 130, 60, 3):
            session.rewind(length)
            _check(long, length, session.step(long.tokens[length])[0])
            _decode(long, session, min(_TOKENS, length + 90))
        assert len(session.tokens) == 93
        _check(long, 199, session.sync(long.tokens[:200])[0])


def test_a_prefix_is_reused_from_the_nearest_mark(long: Golden) -> None:
    with _open(long) as (session, _):
        session.sync(long.tokens[:200])
        for token in [5] * 100:
            session.step(token)
        assert session.reusable(long.tokens) == 200, "the prompt's end was marked, and its window is not in the rows any more"
        _check(long, 229, session.sync(long.tokens[:230])[0])
        reached = 200 if inspect(long.folder).footprint.state_bytes else 227
        assert session.reusable(long.tokens[:228]) == reached, (
            "the rows reach that far, what a state remembers goes to its marks"
        )
        session.rewind(0)
        _check(long, 99, session.sync(long.tokens[:100])[0])


def test_a_pass_given_up_leaves_no_trace(long: Golden) -> None:
    with _open(long) as (session, _):
        session.sync(long.tokens[:_CHUNK])
        session.sync(long.tokens[: _CHUNK + 7])  # the next pass moves the rows
        for calls in (1, 2):
            left = calls

            def stop() -> bool:
                nonlocal left
                left -= 1
                return left == 0

            with pytest.raises(Cancelled):
                session._pass(Phase.PREFILL, long.tokens[71:130], stop)
            _check(long, 71, session.step(long.tokens[71])[0])
            session.rewind(71)
        _decode(long, session, 150)


@pytest.mark.parametrize("kv_type", KvType)
def test_memory_is_what_the_plan_says(long: Golden, kv_type: KvType) -> None:
    with _open(long, kv_type=kv_type) as (session, plan):
        session.sync(long.tokens[:300])
        kv = session._parts.kv
        rows = sum(len(memory) for memory in kv._memory)
        marks = sum(part.nbytes for _, kept in kv._windows._marks._marks for part in kept.values())
        assert marks > 0
        assert 0.9 * plan.kv_bytes <= rows + marks <= plan.kv_bytes + 64 * len(kv._memory)
        footprint = replace(inspect(long.folder).footprint, kv_type=kv_type)
        assert kv.read_bytes(1) == footprint.kv_read_bytes(301)


def test_a_window_is_small_beside_a_long_context() -> None:
    assert rows_kept(128, 131072, 512) == 640
    assert rows_kept(1024, 4096, 512) == 4096, "with what is kept to go back to it would take more than all"
    cache = KvCache(2, 2, 16, 131072, windows=(128, None), chunk=512)
    windowed, whole = (len(memory) for memory in cache._memory)
    assert windowed * 131072 == whole * 640


_OF_BF16 = {KvType.FP32: 0.01, KvType.BF16: 1.0, KvType.Q8: 3.0}  # times what the reference's own pass in bf16 differs by


@pytest.fixture(scope="module", params=ROWS)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("kv_type", KvType)
def test_each_type_against_the_reference(golden: Golden, kv_type: KvType, kernels: str) -> None:
    """In the middle of all positions: at some a random router is so near the edge that any rounding chooses another expert."""
    ours = differences(golden, kernels_named(kernels), kv_type).median()
    assert ours < _OF_BF16[kv_type] * differences_in_bf16(golden).median()
    assert (ours > 1e-4) == (kv_type is not KvType.FP32), "it is kept in the type that was asked for"
