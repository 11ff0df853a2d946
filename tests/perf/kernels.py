"""What the native kernels reach on this machine: GB/s of weights by format and tokens, as a share of the memory's read ceiling.

`python -m tests.perf.kernels [--json] [--seconds 1.0]`. Ceiling and kernel take turns, so that both meet the same disturbances;
the best of each counts, since whatever else runs only slows it, and the medians are shown beside them.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from engine.kernels.native import ExpertTable, Native
from engine.kernels.threads import kernel_threads
from engine.kernels.weights import Format, ScaleType, Weight
from engine.tiers.arena import aligned_memory

MEMORY = 192 << 20  # six times a large last-level cache
WINDOWS = 6  # a call takes the next sixth: under a millisecond, which another process's time slice often spares
COLS = 4096
HIDDEN, WIDE, EXPERTS, TOP_K = 2048, 768, 128, 8  # Qwen3-30B-A3B
BATCHES = (1, 4, 64)


@dataclass(frozen=True)
class Figure:
    what: str
    tokens: int
    gbps: float
    median_gbps: float
    of_ceiling: float
    gflops: float


def random_bytes(size: int, low: int, high: int) -> torch.Tensor:
    memory = torch.frombuffer(aligned_memory(size), dtype=torch.uint8)
    return memory.random_(low, high)


def matrices() -> dict[str, Callable[[torch.Tensor, torch.Tensor], Weight]]:
    """Each takes memory for codes and for scales, and makes of it as many rows as fit."""

    def plain(kind: Format, size: int) -> Callable[[torch.Tensor, torch.Tensor], Weight]:
        return lambda data, _: Weight(kind, MEMORY // (COLS * size), COLS, data, COLS * size)

    def nibbles(kind: Format, scale: ScaleType, size: int, block: int) -> Callable[[torch.Tensor, torch.Tensor], Weight]:
        rows, groups = MEMORY * 2 // COLS, COLS // block
        return lambda data, scales: Weight(
            kind, rows, COLS, data, COLS // 2, scale, scales[: rows * groups * size], groups * size, size, 1, block
        )

    def fp8(data: torch.Tensor, scales: torch.Tensor) -> Weight:
        rows, groups = MEMORY // COLS, COLS // 128
        return Weight(
            Format.E4M3, rows, COLS, data, COLS, ScaleType.BF16, scales[: rows // 128 * groups * 2], groups * 2, 2, 128, 128
        )

    return {
        "F32": plain(Format.F32, 4),
        "BF16": plain(Format.BF16, 2),
        "F16": plain(Format.F16, 2),
        "FP8 128x128": fp8,
        "MXFP4": nibbles(Format.E2M1, ScaleType.E8M0, 1, 32),
        "NVFP4": nibbles(Format.E2M1, ScaleType.E4M3, 1, 16),
        "INT4 g128": nibbles(Format.INT4, ScaleType.BF16, 2, 128),
        "INT4 g32": nibbles(Format.INT4, ScaleType.BF16, 2, 32),
    }


def measure(
    kernels: Native, work: Callable[[], object], nbytes: int, probe: torch.Tensor, seconds: float
) -> tuple[float, float, float]:
    """Best and median GB/s of `work`, and the best of the ceiling, in turn."""
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
    return max(own), statistics.median(own), max(ceiling)


def linear_figures(kernels: Native, seconds: float) -> list[Figure]:
    data, scales, probe = random_bytes(MEMORY, 0, 120), random_bytes(MEMORY // 8, 60, 64), random_bytes(MEMORY, 0, 2)
    figures = []
    for name, make in matrices().items():
        weight = make(data, scales)
        count = weight.rows // WINDOWS // 128 * 128
        windows = [weight.take(index * count, count) for index in range(WINDOWS)]
        nbytes = count * weight.row_stride + (weight.scale_row_stride * count // weight.block_rows if weight.block_rows else 0)
        for tokens in BATCHES:
            x = torch.randn(tokens, COLS)
            turn = itertools.cycle(windows)
            work = lambda x=x, turn=turn: kernels.linear(x, next(turn))  # noqa: E731
            best, median, ceiling = measure(kernels, work, nbytes, probe, seconds)
            flops = 2 * tokens * count * weight.cols / nbytes
            figures.append(Figure(name, tokens, best, median, best / ceiling, best * flops))
    return figures


def moe_figures(kernels: Native, seconds: float) -> list[Figure]:
    """A Qwen3-30B-A3B layer in MXFP4, uniform routing drawn anew for each call."""
    data, scales = (
        random_bytes(EXPERTS * 3 * HIDDEN * WIDE // 2, 0, 256),
        random_bytes(EXPERTS * 3 * HIDDEN * WIDE // 32, 118, 124),
    )
    probe = random_bytes(MEMORY, 0, 2)
    table, part = ExpertTable(EXPERTS), HIDDEN * WIDE
    for expert in range(EXPERTS):
        weights = []
        for index, (rows, cols) in enumerate(((WIDE, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE))):
            at = (expert * 3 + index) * part
            codes, own = data[at // 2 : (at + part) // 2], scales[at // 32 : (at + part) // 32]
            weights.append(Weight(Format.E2M1, rows, cols, codes, cols // 2, ScaleType.E8M0, own, cols // 32, 1, 1, 32))
        table.set(expert, *weights)
    figures = []
    for tokens in (1, 16, 64, 512, 1024):
        x, weights_of = torch.randn(tokens, HIDDEN), torch.rand(tokens, TOP_K)
        routes = [torch.rand(tokens, EXPERTS).topk(TOP_K, dim=1).indices.int() for _ in range(16)]
        nbytes = int(sum(len(set(route.flatten().tolist())) for route in routes) / len(routes) * 3 * part * 17 / 32)
        turn = itertools.cycle(routes)
        work = lambda x=x, w=weights_of, turn=turn: kernels.moe(table, x, next(turn), None, w)  # noqa: E731
        best, median, ceiling = measure(kernels, work, nbytes, probe, seconds)
        figures.append(Figure("MoE MXFP4", tokens, best, median, best / ceiling, best * 2 * tokens * TOP_K * 3 * part / nbytes))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--threads", type=int, default=kernel_threads())
    parser.add_argument("--isa", default="best")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kernels = Native(options.threads, options.isa)
    print(f"{kernels.isa}, {kernels.threads} threads; best and median of each, ceiling measured in turn")
    figures = moe_figures(kernels, options.seconds) + linear_figures(kernels, options.seconds)
    print(f"{'':12}{'tokens':>7}{'GB/s':>8}{'median':>8}{'of read':>9}{'GFLOP/s':>9}")
    for f in figures:
        print(f"{f.what:12}{f.tokens:7}{f.gbps:8.1f}{f.median_gbps:8.1f}{f.of_ceiling:9.0%}{f.gflops:9.0f}")
    kernels.close()
    if options.json:
        print(json.dumps({"isa": kernels.isa, "threads": kernels.threads, "figures": [asdict(figure) for figure in figures]}))


if __name__ == "__main__":
    main()
