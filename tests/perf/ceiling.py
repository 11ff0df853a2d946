"""The rate at which this machine's memory can be read by all cores: the ceiling of decoding. Measured, never looked up."""

import contextlib
import time
from collections.abc import Callable

import torch

from engine.errors import EngineError
from engine.kernels.native import Native

_BYTES = 512 << 20  # far beyond any cache


def read_ceiling_gbps(threads: int, passes: int = 7) -> float:
    """GB/s of the best of several passes over half a gigabyte: by the engine's own reading loop, and by torch's reductions.

    The best, not the median: a ceiling is what nothing disturbed.
    """
    data = torch.rand(_BYTES // 4)  # equal pages may be one page to the machine's host, which reads them from its caches
    loops: list[Callable[[torch.Tensor], object]] = [torch.max, torch.sum]
    with contextlib.suppress(EngineError):  # not built on this machine
        loops.append(Native(threads).read)
    best = 0.0
    for _ in range(passes):
        for loop in loops:
            begun = time.perf_counter()
            loop(data)
            best = max(best, _BYTES / (time.perf_counter() - begun) / 1e9)
    return best
