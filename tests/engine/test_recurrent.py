"""Layers that remember in tensors of a fixed size: the chunked rule against its own definition, and what a rewind gets back."""

import pytest
import torch

from engine.kernels.delta import gated_delta, short_conv
from engine.kernels.mamba import selective_scan
from engine.kv.cache import KvCache
from engine.kv.state import States
from engine.session import Cancelled
from tests.golden.parity import Golden, make_golden
from tests.helpers.tiny import session_on


@pytest.mark.parametrize("count", [1, 63, 64, 150])
def test_the_delta_rule_in_chunks_is_the_rule_token_by_token(count: int) -> None:
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(3, count, 8),
        torch.nn.functional.normalize(torch.randn(3, count, 8), dim=-1),
        torch.randn(3, count, 5),
    )
    decay, rate, memory = -torch.rand(3, count) * 3, torch.rand(3, count), torch.randn(3, 8, 5)
    following = torch.empty_like(memory)
    read = gated_delta(q, k, v, decay, rate, memory, following)
    state = memory.double()
    for t in range(count):
        state = state * decay[:, t, None, None].double().exp()
        error = v[:, t].double() - torch.einsum("hkv,hk->hv", state, k[:, t].double())
        state = state + torch.einsum("hk,hv->hkv", k[:, t].double(), error * rate[:, t, None].double())
        expected = torch.einsum("hkv,hk->hv", state, q[:, t].double())
        torch.testing.assert_close(read[:, t].double(), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(following.double(), state, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 63, 64, 150])
def test_the_selective_scan_in_chunks_is_the_scan_token_by_token(count: int) -> None:
    torch.manual_seed(0)
    x, b, c = torch.randn(count, 6, 5), torch.randn(count, 2, 8), torch.randn(count, 2, 8)
    decay, memory = -torch.rand(count, 6) * 3, torch.randn(6, 8, 5)
    following = torch.empty_like(memory)
    read = selective_scan(x, b, c, decay, memory, following)
    state = memory.double()
    for t in range(count):
        for head in range(6):
            written = torch.outer(b[t, head // 3].double(), x[t, head].double())
            state[head] = state[head] * decay[t, head].double().exp() + written
            torch.testing.assert_close(read[t, head].double(), c[t, head // 3].double() @ state[head], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(following.double(), state, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cut", [0, 1, 2, 7])
def test_a_convolution_in_two_passes_is_torchs_in_one(cut: int) -> None:
    torch.manual_seed(0)
    x, weight, past, between = torch.randn(9, 6), torch.randn(6, 4), torch.zeros(3, 6), torch.empty(3, 6)
    expected = torch.nn.functional.conv1d(x.t()[None], weight[:, None], padding=3, groups=6)[0, :, :9].t()
    taps = weight.t().contiguous()
    first = short_conv(x[:cut], past, between, taps)
    second = short_conv(x[cut:], between, torch.empty(3, 6), taps)
    torch.testing.assert_close(torch.cat((first, second)), expected)


def test_states_are_reached_where_they_were_marked() -> None:
    states = States()

    def grow(length: int) -> None:
        (now,), (following,) = states.of(0, (1,))
        following.copy_(now + length)
        states.commit()

    total = 0
    for length in range(1, 13):
        grow(length)
        total += length
        states.mark(length)
    assert states.reachable(12, 12) == states.reachable(20, 12) == 12
    reached = states.reachable(11, 12)
    assert reached == 11, "the marks lie densest at the end"
    states.go_back(reached)
    assert float(states.of(0, (1,))[0][0]) == total - 12
    assert states.reachable(10, 11) < 11
    states.go_back(0)
    assert float(states.of(0, (1,))[0][0]) == 0


def test_a_cache_without_states_reaches_every_length() -> None:
    cache = KvCache(1, 1, 4, 32)
    cache.advance(20)
    assert [cache.reachable(length) for length in (0, 7, 20)] == [0, 7, 20]


@pytest.fixture(scope="module", params=["qwen3_next", "lfm2_moe", "granitemoehybrid", "deepseek_v4"])
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    pytest.importorskip("transformers", reason="the reference for parity is not installed")
    return make_golden(request.param, tmp_path_factory.mktemp("golden"))


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
def test_a_prompt_in_chunks_and_its_reuse(golden: Golden) -> None:
    with session_on(golden.folder) as (session, _):
        session._parts.chunk = 7

        def check(logits: torch.Tensor, position: int) -> None:
            assert float((logits - golden.logits[position]).norm() / golden.logits[position].norm()) < 1e-4, position

        check(session.sync(golden.tokens[:30])[0], 29)
        changed = [*golden.tokens[:25], 1, 2, 3]
        assert session.reusable(changed) == 21, "the chunk's edge before the first difference"
        session.sync(changed)
        assert session.reusable(golden.tokens[:30]) == 21
        check(session.sync(golden.tokens[:30])[0], 29)
        check(session.step(golden.tokens[30])[0], 30)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("calls", [1, 2])
def test_a_pass_given_up_leaves_no_trace(golden: Golden, calls: int) -> None:
    left = calls

    def stop() -> bool:
        nonlocal left
        left -= 1
        return left == 0

    with session_on(golden.folder) as (session, _):
        session.sync(golden.tokens[:20])
        with pytest.raises(Cancelled):
            session.step(golden.tokens[20], stop)
        logits = session.step(golden.tokens[20])[0]
        assert float((logits - golden.logits[20]).norm() / golden.logits[20].norm()) < 1e-4
