"""What the parts of `tests.gpu.run_all` measure on: a card or a stand-in for one, sizes, and a clock of the device's own."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.accelerators import open_devices
from engine.errors import EngineError
from engine.experts.vram import Device
from engine.hardware.probe import probe
from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.kernels import Kernels, open_kernels
from engine.plan.forecast import Knowledge
from engine.tiers.simulated import SimulatedAccelerator, Simulation
from tests.perf.shapes import SHAPES, Shape

Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Of what is measured; `shape` is a published model, cut to `layers`."""

    shape: Shape
    layers: int
    gathered_bytes: tuple[int, ...]
    hidden: int
    wide: int
    batches: tuple[int, ...]
    prompts: tuple[int, ...]
    warm: int  # tokens decoded before
    tokens: int  # decoded for a figure
    read_bytes: int
    rounds: int


def real_sizes(layers: int) -> Sizes:
    mb = (600_000, 1_600_000, 2_500_000, 5_000_000, 12_800_000, 20_000_000)
    return Sizes(
        SHAPES["qwen3-30b-a3b"].cut(layers), layers, mb, 2048, 768, (1, 64, 512), (64, 512, 8192), 128, 48, 2 << 30, 20
    )


def tiny_sizes() -> Sizes:
    shape = SHAPES["qwen3-30b-a3b"].small(layers=2)
    return Sizes(shape, 2, (64 << 10, 160 << 10), 128, 96, (1, 6), (8, 24), 8, 4, 1 << 20, 2)


@dataclass
class Setting:
    """`cpu` are the kernels that the device's are held against."""

    device: Device
    cpu: Kernels
    sizes: Sizes
    folder: Path
    encoding: str
    is_simulated: bool
    rates: dict[str, float] = field(default_factory=dict)  # GB/s, as parts find them: "vram", "link"
    known: Knowledge | None = None  # of the model that is decoded, once a part has needed it

    @property
    def kernels(self) -> DeviceKernels:
        kernels = self.device.kernels
        assert isinstance(kernels, DeviceKernels)
        return kernels

    def seconds(self, run: Callable[[], object], rounds: int = 0) -> float:
        """Of one run on the device, once it is warm."""
        rounds = rounds or self.sizes.rounds
        for _ in range(2):
            run()
        timing = self.device.accelerator.time()
        for _ in range(rounds):
            run()
        timing.stop()
        return timing.seconds() / rounds

    def captured(self, run: Callable[[], object]) -> Callable[[], object]:
        """The same without the host's part of it, where the device can."""
        if self.device.device.type != "cuda" or self.kernels.launcher is None:
            return run
        run()
        self.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return graph.replay

    def wait(self) -> None:
        if self.device.device.type != "cpu":
            torch.accelerator.synchronize(self.device.device)


def open_setting(folder: Path, encoding: str, layers: int, *, is_simulated: bool) -> tuple[Setting, str]:
    """And what is to be said of the card. Raises `EngineError` without a card."""
    if is_simulated:
        kernels = DeviceKernels(torch.device("cpu"))
        device = Device(SimulatedAccelerator(Simulation(1 << 30)), kernels)
        return Setting(device, open_kernels()[0], tiny_sizes(), folder, encoding, True), kernels.notice
    devices, said = open_devices(probe())
    if not devices:
        raise EngineError("gpu.none", f"There is no card that torch can use. {said}".strip(), "Try --simulate.")
    return Setting(devices[0], open_kernels()[0], real_sizes(layers), folder, encoding, False), said


def wall(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun
