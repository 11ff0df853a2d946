"""The graphics cards that the engine computes on: those that were found usable, tried out one by one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch

from engine.experts.vram import Device
from engine.hardware.machine import Gpu, GpuKind, Machine
from engine.kernels.gpu.kernels import DeviceKernels
from engine.tiers.copy import DeviceLost
from engine.tiers.device import TorchAccelerator

OpenDevices = Callable[[Machine], tuple[list[Device], str]]


def open_devices(machine: Machine) -> tuple[list[Device], str]:
    """The roomiest first, and a sentence for each card that was found usable and is not, or that computes slowly.

    What a probe says of cards that cannot be used is not repeated.
    """
    usable = [gpu for gpu in machine.gpus if gpu.is_usable]
    if not usable or not torch.accelerator.is_available():
        return [], ""
    kind = torch.accelerator.current_accelerator()
    assert kind is not None, "an accelerator is available"
    devices, said = [], []
    for index in range(torch.accelerator.device_count()):
        name = usable[min(index, len(usable) - 1)].name
        try:
            device = torch.device(kind.type, index)
            accelerator = TorchAccelerator(device, name, machine.pinnable)
            kernels = DeviceKernels(device)
            devices.append(Device(accelerator, kernels))
            said.append(kernels.notice)
        except DeviceLost as lost:
            said.append(f"{name} is there and cannot compute ({lost}): it stays unused.")
    devices.sort(key=lambda device: device.accelerator.free_bytes(), reverse=True)
    return devices, " ".join(filter(None, said))


def with_devices(machine: Machine, devices: Sequence[Device]) -> Machine:
    """The computer with the cards that work, and with the memory that they have free now."""
    # In their order, whatever has changed since they were put into it.
    free = accumulate((device.accelerator.free_bytes() for device in devices), min)
    kinds = {"cuda": GpuKind.AMD if torch.version.hip else GpuKind.NVIDIA, "xpu": GpuKind.INTEL, "mps": GpuKind.APPLE}
    cards = [
        Gpu(device.accelerator.name, kinds.get(device.device.type, GpuKind.NVIDIA), vram_free=room)
        for device, room in zip(devices, free, strict=True)
    ]
    return replace(machine, gpus=tuple(cards))
