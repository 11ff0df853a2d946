"""A model on a simulated accelerator with the kernels of a real one: the CPU's answer."""

from pathlib import Path

import torch

from engine.experts.vram import Device
from engine.kernels.gpu.kernels import DeviceKernels
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.helpers.tiny import session_on, write_mixtral


def test_an_answer_is_the_cpu_s(kernels: DeviceKernels, tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model", torch.bfloat16, num_hidden_layers=2)
    prompt = torch.randint(3, 259, (12,), generator=torch.Generator().manual_seed(3)).tolist()
    with session_on(folder, expert_ram="100%") as (session, _):
        expected = [session.sync(prompt)[0]]
        while len(expected) < 3:
            expected.append(session.step(int(expected[-1].argmax()))[0])
    device = Device(SimulatedAccelerator(Simulation(8 << 20)), kernels)
    with session_on(folder, devices=[device], vram_slots=6, expert_ram="100%") as (session, _):
        ours = session.sync(prompt)[0]
        for logits in expected:
            torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)
            ours = session.step(int(logits.argmax()))[0]
    assert kernels.launcher is not None, kernels.notice
