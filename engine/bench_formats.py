"""What the kernels give for every weight format, with made-up experts of a usual size: before any model is on the computer."""

import time
from collections.abc import Callable

import torch

from engine.bench_pieces import Place, moe_seconds
from engine.kernels.gpu.kernels import words_of
from engine.kernels.native import ExpertTable
from engine.kernels.weights import SILU, Format, ScaleType, Weight
from engine.rates import Curve
from engine.rehearsal import drawn_memory

_HIDDEN, _INNER, _TOP_K = 2048, 768, 8  # of Qwen3-30B-A3B
_CACHE_BYTES = 128 << 20
_ROWS = (1, 2, 4, 8, 16, 64)
SECONDS = 3.0  # and some 0.4 to make the experts


def _bf16(memory: torch.Tensor, rows: int, cols: int) -> Weight:
    return Weight(Format.BF16, rows, cols, memory, 2 * cols)


def _fp8(memory: torch.Tensor, rows: int, cols: int) -> Weight:
    scales = torch.full((rows // 128 * (cols // 128),), 0.01, device=memory.device).view(torch.uint8)
    return Weight(Format.E4M3, rows, cols, memory, cols, ScaleType.F32, scales, cols // 32, 4, 128, 128)


def _mxfp4(memory: torch.Tensor, rows: int, cols: int) -> Weight:
    return _grouped(memory, rows, cols, Format.E2M1, ScaleType.E8M0, 32)


def _nvfp4(memory: torch.Tensor, rows: int, cols: int) -> Weight:
    return _grouped(memory, rows, cols, Format.E2M1, ScaleType.E4M3, 16)


def _int4(memory: torch.Tensor, rows: int, cols: int) -> Weight:
    return _grouped(memory, rows, cols, Format.INT4, ScaleType.BF16, 128)


def _grouped(memory: torch.Tensor, rows: int, cols: int, form: Format, scale: ScaleType, block: int) -> Weight:
    """Codes of half a byte with a scale for each block of a row; the scales lie behind the codes."""
    size = 2 if scale is ScaleType.BF16 else 1
    per_row = cols // block * size
    codes = rows * cols // 2
    memory[codes : codes + rows * per_row] = 0x3F  # a positive number in each type of scale
    return Weight(
        form, rows, cols, memory[:codes], cols // 2, scale, memory[codes : codes + rows * per_row], per_row, size, 1, block
    )


_MAKERS: dict[str, tuple[Callable[[torch.Tensor, int, int], Weight], float]] = {
    "BF16": (_bf16, 2.0), "FP8": (_fp8, 1.0), "MXFP4": (_mxfp4, 0.5 + 1 / 32), "NVFP4": (_nvfp4, 0.5 + 1 / 16),
    "INT4": (_int4, 0.5 + 2 / 128),
}  # fmt: skip


def measure_formats(
    place: Place, should_stop: Callable[[], bool] = lambda: False, seconds: float = SECONDS
) -> dict[str, Curve]:
    """GB/s of weights by rows per expert, for each format, in that many seconds; those measured so far when told to stop."""
    found: dict[str, Curve] = {}
    deadline = time.perf_counter() + seconds
    for name, (make, weight_bytes) in _MAKERS.items():
        if should_stop():
            break
        share = max(0.0, deadline - time.perf_counter()) / (len(_MAKERS) - len(found))
        found[name] = _measure(place, make, int(weight_bytes * _HIDDEN * _INNER), share)
    return found


def _measure(place: Place, make: Callable[[torch.Tensor, int, int], Weight], matrix_bytes: int, seconds: float) -> Curve:
    deadline = time.perf_counter() + seconds
    stride = -(-matrix_bytes // 64) * 64
    count = max(_TOP_K, _CACHE_BYTES // (3 * stride))
    memory = drawn_memory(3 * count * stride).view(3 * count, stride).to(place.device)
    table = ExpertTable(count)
    for slot in range(count):
        gate, up, down = memory[3 * slot : 3 * slot + 3]
        table.set(slot, make(gate, _INNER, _HIDDEN), make(up, _INNER, _HIDDEN), make(down, _HIDDEN, _INNER))
    if place.device.type != "cpu":
        table.words = words_of(table, place.device)
    curve = []
    for done, rows in enumerate(_ROWS):
        share = max(0.0, deadline - time.perf_counter()) / (len(_ROWS) - done)
        taken = moe_seconds(table, range(count), (rows, _TOP_K), _HIDDEN, SILU, place, share)
        curve.append((float(rows), 3 * _TOP_K * matrix_bytes / taken / 1e9))
    return tuple(curve)
