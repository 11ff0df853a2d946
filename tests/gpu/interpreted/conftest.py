"""Kernels under Triton's interpreter, which `tests/engine/test_gpu_kernels.py` turns on in a process of their own."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.gpu.kernels import DeviceKernels
from engine.kernels.gpu.launch import MATVEC


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:  # of a sigmoid: what overflows there is infinite, and its share is 0
        item.add_marker(pytest.mark.filterwarnings("ignore:overflow encountered in exp"))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> DeviceKernels:
    """With few programs, as each takes the interpreter milliseconds whatever its size."""
    for kind, launch in list(MATVEC.items()):
        monkeypatch.setitem(MATVEC, kind, replace(launch, rows=64))
    made = DeviceKernels(torch.device("cpu"))
    assert made.isa == "Triton", made.notice
    return made
