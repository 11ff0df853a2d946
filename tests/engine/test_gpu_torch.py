"""What torch does on a device: attention, products and experts where Triton does not run. On the CPU, against the reference."""

import sys
from pathlib import Path

import pytest
import torch

from engine.experts.vram import Device
from engine.kernels.gpu import attention
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.reference import Reference
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.gpu.layers import EVERY, make_layer, route
from tests.helpers.tiny import session_on, write_mixtral
from tests.kernels.matrices import relative_error

CPU = torch.device("cpu")


@pytest.fixture
def kernels() -> DeviceKernels:
    return DeviceKernels(CPU, fallback=True)


@pytest.mark.parametrize("tokens", [1, 2, 11])
@pytest.mark.parametrize("past", [0, 20])
@pytest.mark.parametrize(
    "special",
    [{}, {"window": 5}, {"sinks": torch.linspace(-1, 3, 6)}, {"softcap": 4.0}, {"scale": 0.3},
     {"window": 3, "sinks": torch.ones(6), "softcap": 2.0}],
    ids=["plain", "window", "sinks", "softcap", "scale", "all"],
)  # fmt: skip
def test_attention(
    kernels: DeviceKernels, special: dict[str, object], past: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_LOGIT_BYTES", 6 * 31 * 4 * 4)  # four queries at once
    torch.manual_seed(1)
    q, keys, values = torch.randn(tokens, 6, 16), torch.randn(2, past + tokens, 16), torch.randn(2, past + tokens, 16)
    expected = Reference().attention(q, keys, values, **special)  # type: ignore[arg-type]
    torch.testing.assert_close(kernels.attention(q, keys, values, **special), expected)  # type: ignore[arg-type]


def test_attention_over_rows_of_another_type_and_size(kernels: DeviceKernels) -> None:
    """Latent attention: values are the first part of the keys; and what is kept in half precision."""
    torch.manual_seed(2)
    q, rows = torch.randn(3, 4, 24), torch.randn(1, 9, 24).bfloat16()
    expected = Reference().attention(q, rows, rows[..., :16])
    torch.testing.assert_close(kernels.attention(q, rows, rows[..., :16]), expected)


@pytest.mark.parametrize("name", EVERY)
def test_every_encoding(kernels: DeviceKernels, name: str) -> None:
    torch.manual_seed(3)
    weight, values = EVERY[name](40, 256)
    for tokens in (1, 9):
        x = torch.randn(tokens, 256)
        assert relative_error(kernels.linear(x, weight), x.double() @ values.T) < 1e-6


def test_experts(kernels: DeviceKernels) -> None:
    torch.manual_seed(4)
    table, _ = make_layer("mxfp4")
    x, (ids, weights) = torch.randn(6, 128), route(6)
    expected = Reference().moe(table, x, ids, None, weights)
    assert expected is not None
    y = kernels.moe(table, x, ids, None, weights)
    assert y is not None
    torch.testing.assert_close(y, expected)


def test_a_router_does_not_round(kernels: DeviceKernels) -> None:
    torch.manual_seed(5)
    weight, _ = EVERY["bf16"](12, 64)
    x = torch.randn(30, 64)
    for ours, theirs in zip(
        kernels.router(weight, 3, renormalise=True)(x), Reference().router(weight, 3, renormalise=True)(x), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_without_triton_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triton", "engine.kernels.gpu.launcher"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    kernels = DeviceKernels(CPU)
    assert kernels.isa == "torch"
    assert "Triton" in kernels.notice
    assert kernels.linear(torch.ones(1, 8), torch.ones(2, 8)).tolist() == [[8.0, 8.0]]


def test_an_answer_is_the_cpu_s(kernels: DeviceKernels, tmp_path: Path) -> None:
    """Everything on a device with few slots, and experts on the CPU too: the same text, logits to rounding."""
    folder = write_mixtral(tmp_path / "model", torch.bfloat16)
    prompt = torch.randint(3, 259, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    with session_on(folder, expert_ram="100%") as (session, _):
        expected = [session.sync(prompt)[0]]
        while len(expected) < 12:
            expected.append(session.step(int(expected[-1].argmax()))[0])
    device = Device(SimulatedAccelerator(Simulation(8 << 20)), kernels)
    with session_on(folder, devices=[device], vram_slots=7, expert_ram="50%") as (session, _):
        ours = session.sync(prompt)[0]
        for logits in expected:
            torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)
            ours = session.step(int(logits.argmax()))[0]
