"""Memory and time of what is kept of tokens, as a plan has them: by type, and for layers that see only a window."""

from dataclasses import replace

import pytest

from engine.config import KvType, Wishes
from engine.hardware.machine import Machine
from engine.plan.forecast import Knowledge, forecast
from engine.plan.plan import make_plan
from engine.plan.predict import prompt_seconds
from engine.protocol import Change, Load, Plan, decode, encode
from engine.units import GB
from tests.helpers.rates import QWEN3_30B, RATES

MACHINE = Machine(32 * GB, 24 * GB, False)
KNOWN = Knowledge(RATES, "")
GPT_OSS = replace(QWEN3_30B, num_layers=24, kv_layers=24, num_kv_heads=8, head_dim=64, windows=((128, 12),), max_context=131072)


def _plan(**wishes: object) -> Plan:
    return make_plan(MACHINE, QWEN3_30B, Wishes(context=8192, **wishes))  # type: ignore[arg-type]


def test_bytes_by_type_are_those_of_the_published_shape() -> None:
    """Qwen3-30B-A3B: 48 layers, 4 heads of 128, keys and values; 34 bytes for 32 numbers in 8 bits."""
    numbers = 2 * 48 * 4 * 128 * 8192
    assert _plan(kv_type=KvType.FP32).kv_bytes == 4 * numbers
    assert _plan().kv_bytes == _plan(kv_type=KvType.BF16).kv_bytes == 2 * numbers
    assert _plan(kv_type=KvType.Q8).kv_bytes == numbers * 34 // 32


def test_what_a_type_gives_back_goes_to_experts() -> None:
    slots = [sum(_plan(kv_type=kv_type).slots_per_layer) for kv_type in KvType]
    assert slots == sorted(slots)
    assert slots[0] < slots[-1]


def test_each_other_type_is_priced() -> None:
    plan = forecast(MACHINE, QWEN3_30B, Wishes(context=32768), KNOWN)
    prices = {gain.text.split()[-1]: gain for gain in plan.prices if gain.change is Change.KV_TYPE}
    assert set(prices) == {"fp32", "q8"}
    assert plan.predicted_tokens_per_second is not None
    assert prices["fp32"].amount == plan.kv_bytes
    assert prices["q8"].amount == plan.kv_bytes * 17 // 32 - plan.kv_bytes
    assert prices["fp32"].tokens_per_second < plan.predicted_tokens_per_second < prices["q8"].tokens_per_second


def test_windows_of_a_long_context_take_next_to_nothing() -> None:
    """gpt-oss: every other of 24 layers sees 128 tokens, so that half of the memory grows with the context."""
    row = 2 * 8 * 64 * 2
    assert GPT_OSS.kv_bytes(131072, 512) == 12 * row * 131072 + 12 * row * (5 * 128 + 512)
    assert GPT_OSS.kv_bytes(1024, 512) == 24 * row * 1024, "as long as all would be less, all is kept"
    assert GPT_OSS.kv_read_bytes(8192) == 12 * row * (8192 + 128)


def test_windows_make_a_long_prompt_cheaper() -> None:
    plan = make_plan(MACHINE, GPT_OSS, Wishes(context=65536))
    seconds = [prompt_seconds(plan, shape, RATES, 65536, is_cold=False) for shape in (replace(GPT_OSS, windows=()), GPT_OSS)]
    assert seconds[1] < seconds[0]


@pytest.mark.parametrize("kv_type", [None, *KvType])
def test_a_wish_goes_over_the_wire(kv_type: KvType | None) -> None:
    load = Load(1, "tiny", Wishes(kv_type=kv_type))
    assert decode(encode(load)) == load
