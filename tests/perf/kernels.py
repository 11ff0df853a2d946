"""What the native kernels reach on this machine: GB/s of weights by format and tokens, as a share of the memory's read ceiling.

`python -m tests.perf.kernels [--json] [--seconds 0.5] [--tokens 1 64] [--only MXFP4 FP8]`: for every format one matrix of 4096
columns, and a layer of Qwen3-30B-A3B's experts in one fused call. Ceiling and kernel take turns, so that both meet the same
disturbances and the same drift: what counts is the median of the ratios of neighbours.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from operator import truediv

import torch

from engine.kernels.native import ExpertTable, Native
from engine.kernels.threads import kernel_threads
from engine.kernels.weights import Format, ScaleType, Weight
from engine.tiers.arena import aligned_memory

MEMORY = 192 << 20  # six times a large last-level cache
WINDOWS = 6  # a call takes the next sixth: under a millisecond, which another process's time slice often spares
COLS = 4096
HIDDEN, WIDE, EXPERTS, TOP_K = 2048, 768, 128, 8  # Qwen3-30B-A3B
LAYER = 400 << 20  # bytes of experts at most: the wider formats get fewer than 128
_SCALE_BYTES = {ScaleType.NONE: 0, ScaleType.F32: 4, ScaleType.BF16: 2, ScaleType.F16: 2, ScaleType.E8M0: 1, ScaleType.E4M3: 1}
_BITS = {Format.F32: 32, Format.F16: 16, Format.BF16: 16, Format.E4M3: 8}  # others: 4


@dataclass(frozen=True)
class Encoding:
    """A format with its options. A block of 0 is the whole dimension."""

    format: Format
    scale: ScaleType = ScaleType.NONE
    block_rows: int = 1
    block_cols: int = 0
    has_zeros: bool = False
    element_step: int = 0


ENCODINGS = {
    "F32": Encoding(Format.F32),
    "BF16": Encoding(Format.BF16),
    "BF16 [in, out]": Encoding(Format.BF16, element_step=1),
    "BF16 [in, 2 out]": Encoding(Format.BF16, element_step=2),
    "F16": Encoding(Format.F16),
    "FP8 128x128": Encoding(Format.E4M3, ScaleType.F32, 128, 128),
    "FP8 channel": Encoding(Format.E4M3, ScaleType.BF16, 1),
    "FP8 tensor": Encoding(Format.E4M3, ScaleType.F32, 0),
    "MXFP8": Encoding(Format.E4M3, ScaleType.E8M0, 1, 32),
    "MXFP4": Encoding(Format.E2M1, ScaleType.E8M0, 1, 32),
    "NVFP4": Encoding(Format.E2M1, ScaleType.E4M3, 1, 16),
    "INT4 g128": Encoding(Format.INT4, ScaleType.BF16, 1, 128),
    "INT4 g32": Encoding(Format.INT4, ScaleType.BF16, 1, 32),
    "INT4 g128 zeros": Encoding(Format.INT4, ScaleType.BF16, 1, 128, has_zeros=True),
    "INT4 g32 zeros": Encoding(Format.INT4, ScaleType.BF16, 1, 32, has_zeros=True),
    "GPTQ g128": Encoding(Format.INT4_GPTQ, ScaleType.F16, 1, 128, has_zeros=True),
    "AWQ g128": Encoding(Format.INT4_AWQ, ScaleType.F16, 1, 128, has_zeros=True),
}


@dataclass(frozen=True)
class Figure:
    what: str
    kernel: str  # linear or MoE
    tokens: int
    gbps: float
    median_gbps: float
    of_ceiling: float
    gflops: float


class Memory:
    """Random bytes handed out in order, as an expert's parts lie in a slot. Small numbers in every format, no denormals."""

    def __init__(self, nbytes: int) -> None:
        self._data = torch.frombuffer(aligned_memory(nbytes), dtype=torch.uint8).random_(56, 64)
        self._next = 0

    def take(self, nbytes: int) -> torch.Tensor:
        begin, self._next = self._next, self._next + nbytes
        assert self._next <= len(self._data), "more bytes than were counted"
        return self._data[begin : self._next]


def parts_of(kind: Encoding, rows: int, cols: int) -> tuple[int, int, int]:
    """Bytes of codes, scales and zero points."""
    count = -(-rows // (kind.block_rows or rows)) * -(-cols // (kind.block_cols or cols))
    codes = rows * cols * _BITS.get(kind.format, 4) // 8 * max(1, kind.element_step)
    return codes, count * _SCALE_BYTES[kind.scale], count // 2 if kind.has_zeros else 0


def make_weight(kind: Encoding, rows: int, cols: int, memory: Memory) -> Weight:
    tall, wide = kind.block_rows or rows, kind.block_cols or cols
    groups, size = cols // wide, _SCALE_BYTES[kind.scale]
    data, scales, zeros = (memory.take(nbytes) for nbytes in parts_of(kind, rows, cols))
    if kind.element_step:
        stride = rows * kind.element_step * 2
        return Weight(kind.format, rows, cols, data, stride, element_step=kind.element_step)
    by_columns = kind.format in (Format.INT4_GPTQ, Format.INT4_AWQ)
    stride = {Format.INT4_GPTQ: rows * 4, Format.INT4_AWQ: rows // 2}.get(kind.format, len(data) // rows)
    if kind.scale == ScaleType.NONE:
        return Weight(kind.format, rows, cols, data, stride)
    steps = (size, rows * size) if by_columns else (groups * size, size)
    return Weight(
        kind.format, rows, cols, data, stride, kind.scale, scales, *steps, tall, wide,
        zeros if kind.has_zeros else None, rows // 2 if by_columns else groups * 4,
    )  # fmt: skip


def measure(
    kernels: Native, work: Callable[[], object], nbytes: int, probe: torch.Tensor, seconds: float
) -> tuple[float, float, float]:
    """Best and median GB/s of `work`, and the median of its ratio to the ceiling measured next to it."""
    own: list[float] = []
    ceiling: list[float] = []
    begun, parts = time.perf_counter(), itertools.cycle(probe.chunk(WINDOWS))
    while len(own) < 5 or time.perf_counter() - begun < seconds:
        entered = time.perf_counter()
        work()
        between = time.perf_counter()
        part = next(parts)
        kernels.read(part)
        own.append(nbytes / (between - entered) / 1e9)
        ceiling.append(part.nbytes / (time.perf_counter() - between) / 1e9)
    return max(own), statistics.median(own), statistics.median(map(truediv, own, ceiling))


def linear_figure(kernels: Native, name: str, tokens: int, probe: torch.Tensor, seconds: float) -> Figure:
    """Matrices of one window each, taken in turn."""
    kind = ENCODINGS[name]
    rows = MEMORY // WINDOWS * 8 // _BITS.get(kind.format, 4) // COLS // 128 * 128 // max(1, kind.element_step)
    each = sum(parts_of(kind, rows, COLS))
    memory = Memory(WINDOWS * each)
    turn = itertools.cycle([make_weight(kind, rows, COLS, memory) for _ in range(WINDOWS)])
    x = torch.randn(tokens, COLS)
    best, median, share = measure(kernels, lambda: kernels.linear(x, next(turn)), each, probe, seconds)
    return Figure(name, "linear", tokens, best, median, share, best * 2 * tokens * rows * COLS / each)


def moe_figure(kernels: Native, name: str, tokens: int, probe: torch.Tensor, seconds: float) -> Figure:
    """Uniform routing drawn anew for each call."""
    kind, shapes = ENCODINGS[name], ((WIDE, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE))
    expert_bytes = sum(sum(parts_of(replace(kind, element_step=0), *shape)) for shape in shapes)
    count = min(EXPERTS, LAYER // expert_bytes)
    memory, table = Memory(count * expert_bytes), ExpertTable(count)
    for expert in range(count):
        if kind.element_step == 2:  # gate and up alternate, as gpt-oss publishes them
            both = make_weight(replace(kind, element_step=1), 2 * WIDE, HIDDEN, memory)
            down = make_weight(replace(kind, element_step=1), HIDDEN, WIDE, memory)
            table.set(expert, both.take(0, WIDE, 2), both.take(1, WIDE, 2), down)
        else:
            table.set(expert, *(make_weight(kind, *shape, memory) for shape in shapes))
    x, weights = torch.randn(tokens, HIDDEN), torch.rand(tokens, TOP_K)
    routes = [torch.rand(tokens, count).topk(TOP_K, dim=1).indices.int() for _ in range(16)]
    touched = sum(len(set(route.flatten().tolist())) for route in routes) / len(routes)
    nbytes = int(touched * expert_bytes)
    turn = itertools.cycle(routes)
    work = lambda: kernels.moe(table, x, next(turn), None, weights)  # noqa: E731
    best, median, share = measure(kernels, work, nbytes, probe, seconds)
    return Figure(name, "MoE", tokens, best, median, share, best * 6 * tokens * TOP_K * HIDDEN * WIDE / nbytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of formats' names")
    parser.add_argument("--threads", type=int, default=kernel_threads())
    parser.add_argument("--isa", default="best")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels, probe = Native(options.threads, options.isa), Memory(MEMORY).take(MEMORY)
    print(f"{kernels.isa}, {kernels.threads} threads; the share of the read ceiling is the median of neighbouring pairs")
    print(f"{'':17}{'':7}{'tokens':>7}{'GB/s':>8}{'median':>8}{'of read':>9}{'GFLOP/s':>9}")
    figures = []
    for name in (name for name in ENCODINGS if name.startswith(tuple(options.only))):
        alternates = ENCODINGS[name].element_step == 2  # only an expert's gate and up are published so
        for tokens, figure in itertools.product(options.tokens, (moe_figure,) if alternates else (linear_figure, moe_figure)):
            f = figure(kernels, name, tokens, probe, options.seconds)
            figures.append(f)
            print(f"{f.what:17}{f.kernel:7}{f.tokens:7}{f.gbps:8.1f}{f.median_gbps:8.1f}{f.of_ceiling:9.0%}{f.gflops:9.0f}")
    kernels.close()
    if options.json:
        print(json.dumps({"isa": kernels.isa, "threads": kernels.threads, "figures": [asdict(figure) for figure in figures]}))


if __name__ == "__main__":
    main()
