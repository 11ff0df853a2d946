"""Models larger than RAM: Stoker and llama.cpp within the same memory, in turn, and Stoker beside what the drive allows.

`python -m tests.perf.beyond_ram [--caps 3G 2G] [--rounds 2] [--tokens 64] [--trace FILE.csv] [--json]`, in the repository's root.
The model is Qwen3-30B-A3B's shape cut to 12 layers, experts and attention in MXFP4, routing uniform: the worst case for a cache.

Each round measures the drive (`tests.perf.drive`), runs Stoker, measures the drive again and runs llama.cpp (mmap, no repacking,
its readahead at 128 KiB as most Linux computers have it), each in a process of its own within a memory cgroup; where none can be
made, Stoker gets a budget and the ratio is left out. Of the JSON's figures, medians over rounds: `ratio` Stoker's tokens/s to
llama.cpp's; `disk_of_best` what the reader moved while it read, to the drive's best; `of_bound` tokens/s to the drive's best ÷
missed bytes per token, or to what computing in RAM allows, where that is less; `peak_bytes` all memory of the cgroup.
With `--trace`, routing as recorded with 25 % of the experts in RAM, so that nothing can be read ahead: tokens/s to bytes ÷ measured
bandwidths, the links at the same time (`of_bandwidths`) or in turn (`in_turn`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from gguf import GGMLQuantizationType as Type
from platformdirs import user_cache_path

from tests.perf.beyond_ram_child import Job, Result
from tests.perf.drive import best_read_gbps, drop_cached, readahead
from tests.perf.gguf_twin import write_twin
from tests.perf.memory_cap import MemoryCap, memory_cap
from tests.perf.routing import token_ids
from tests.perf.shapes import SHAPES
from tests.perf.synthetic import make

_ROOT = Path(__file__).parents[2]
_SHAPE = SHAPES["qwen3-30b-a3b"]
_LAYERS, _PROMPT, _WARM_UP = 12, 128, 48
_READAHEAD_KIB = 128
_NO_CGROUP_SHARE = 0.9  # of a cap is Stoker's budget for experts where no cgroup holds it, less the dense weights
_TRACE_SHARE = "25%"


@dataclass(frozen=True)
class Round:
    drive_gbps: float  # the better of before and after Stoker's run
    stoker: Result
    llama: Result | None
    peak_bytes: int | None

    @property
    def disk_of_best(self) -> float:
        return self.stoker.disk_gbps / self.drive_gbps

    @property
    def of_bound(self) -> float:
        seconds = max(self.stoker.missed_bytes / self.drive_gbps / 1e9, self.stoker.ram_s)
        return self.stoker.tokens_per_s * seconds


def main() -> None:
    options = _options()
    folder = options.folder / f"qwen3-30b-a3b-mxfp4-{_LAYERS}-uniform-encoded"
    folder = make(folder, _SHAPE, "mxfp4", _LAYERS, 0, "uniform", "encoded")
    twin = write_twin(folder, options.folder / f"{folder.name}-f16.gguf", Type.F16)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bench = _Bench(folder, twin, options, Path(scratch))
        for cap in options.caps:
            rounds = [bench.capped(int(cap.removesuffix("G")) << 30) for _ in range(options.rounds)]
            results[cap] = _summary(rounds)
            _say(options, cap, rounds)
        if options.trace:
            traced = [bench.traced() for _ in range(options.rounds)]
            results["trace"] = _trace_summary(traced)
            _say(options, "trace", traced)
    if options.json:
        print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caps", nargs="*", default=["3G", "2G"], metavar="NG", help="GiB of memory")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64, help="timed in each run")
    parser.add_argument("--trace", type=Path, help="a routing trace to force in RAM for a quarter of the experts")
    parser.add_argument("--no-llama", action="store_true", help="Stoker alone")
    parser.add_argument("--folder", type=Path, default=user_cache_path("stoker", appauthor=False) / "perf")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


class _Bench:
    def __init__(self, folder: Path, twin: Path, options: argparse.Namespace, scratch: Path) -> None:
        self._folder, self._twin, self._options, self._scratch = folder, twin, options, scratch
        self._seed = 0

    def capped(self, nbytes: int) -> Round:
        with memory_cap(nbytes) as cap:
            budget = None if cap.folder else f"{int(nbytes * _NO_CGROUP_SHARE - self._dense_bytes()) // 10**6}MB"
            drive, stoker, peak = self._stoker(cap, expert_ram=budget)
            llama = None
            if cap.folder and not self._options.no_llama:
                with readahead(self._twin, _READAHEAD_KIB) as is_set:
                    llama = self._run(cap, "llama", self._twin)
                if not is_set:
                    print("llama.cpp ran with this computer's own readahead, which could not be changed.", file=sys.stderr)
        return Round(drive, stoker, llama, peak)

    def traced(self) -> Round:
        drive, stoker, _ = self._stoker(MemoryCap(None), expert_ram=_TRACE_SHARE, trace=str(self._options.trace))
        return Round(drive, stoker, None, None)

    def _stoker(self, cap: MemoryCap, **job: Any) -> tuple[float, Result, int | None]:
        before = self._drive_gbps()
        result = self._run(cap, "stoker", self._folder, **job)
        peak = cap.peak_bytes
        return max(before, self._drive_gbps()), result, peak

    def _drive_gbps(self) -> float:
        return best_read_gbps(self._folder / "model.safetensors", _expert_bytes())

    def _dense_bytes(self) -> int:
        total = (self._folder / "model.safetensors").stat().st_size
        return total - _LAYERS * _SHAPE.num_experts * _expert_bytes()

    def _run(self, cap: MemoryCap, engine: str, model: Path, **more: Any) -> Result:
        """In a child process, with tokens that no earlier run of this engine has had. Exits with its last words where it fails."""
        self._seed += 1
        tokens = token_ids(_SHAPE.vocab, _PROMPT + _WARM_UP + self._options.tokens, self._seed, "uniform")
        prompt, rest = tokens[:_PROMPT], tokens[_PROMPT:]
        threads = psutil.cpu_count(logical=False) or 1
        job = Job(engine, str(model), threads, prompt, rest[:_WARM_UP], rest[_WARM_UP:], **more)
        file = self._scratch / "job.json"
        file.write_text(json.dumps(asdict(job)))
        drop_cached(model if model.is_file() else model / "model.safetensors")
        cap.start_over()
        command = [sys.executable, "-m", "tests.perf.beyond_ram_child", str(file)]
        enter: Callable[[], None] = cap.enter
        child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, preexec_fn=enter)
        if child.returncode:
            raise SystemExit(f"{engine} ended with {child.returncode} on {model}:\n{child.stderr[-2000:]}")
        return Result(**json.loads(child.stdout.splitlines()[-1]))


def _expert_bytes() -> int:
    """MXFP4: half a byte and a scale per 32 weights."""
    return 3 * _SHAPE.hidden * _SHAPE.expert_size * 17 // 32


def _summary(rounds: list[Round]) -> dict[str, Any]:
    ratios = [item.stoker.tokens_per_s / item.llama.tokens_per_s for item in rounds if item.llama]
    return {
        "ratio": round(median(ratios), 2) if ratios else None,
        "tokens_per_s": round(median(item.stoker.tokens_per_s for item in rounds), 2),
        "disk_of_best": round(median(item.disk_of_best for item in rounds), 3),
        "of_bound": round(median(item.of_bound for item in rounds), 3),
        "peak_bytes": max((item.peak_bytes or 0 for item in rounds), default=0) or None,
        "missed_mb": round(median(item.stoker.missed_bytes for item in rounds) / 1e6, 1),
        "drive_gbps": round(median(item.drive_gbps for item in rounds), 2),
    }


def _trace_summary(rounds: list[Round]) -> dict[str, Any]:
    def of_bandwidths(item: Round) -> float:
        disk = item.stoker.disk_bytes / item.drive_gbps / 1e9
        return item.stoker.tokens_per_s * max(disk, item.stoker.ram_s)

    def in_turn(item: Round) -> float:
        disk = item.stoker.disk_bytes / item.drive_gbps / 1e9
        return item.stoker.tokens_per_s * (disk + item.stoker.ram_s)

    return {
        "tokens_per_s": round(median(item.stoker.tokens_per_s for item in rounds), 2),
        "in_turn": round(median(in_turn(item) for item in rounds), 3),
        "hit_rate": round(median(item.stoker.hit_rate for item in rounds), 3),
        "of_bandwidths": round(median(of_bandwidths(item) for item in rounds), 3),
        "disk_of_best": round(median(item.disk_of_best for item in rounds), 3),
    }


def _say(options: argparse.Namespace, label: str, rounds: list[Round]) -> None:
    """One line for each round."""
    for item in rounds:
        one = item.stoker
        print(
            f"{label:6} Stoker {one.tokens_per_s:6.2f} tokens/s"
            + (f", llama.cpp {item.llama.tokens_per_s:6.2f}" if item.llama else "")
            + f"; {one.slots} of {one.facts['experts']} experts in RAM, {one.hit_rate:.0%} hits, missed {one.missed_bytes / 1e6:.0f} MB"
            f" + {one.unasked_bytes / 1e6:.0f} unasked per token; drive {item.drive_gbps:.2f} GB/s, read at {item.disk_of_best:.0%}"
            f" of that for {one.disk_busy_s * 1e3:.0f} ms, waited {one.stall_s * 1e3:.0f}, computed {one.ram_s * 1e3:.0f};"
            f" {item.of_bound:.0%} of the bound" + (f"; peak {item.peak_bytes / 1e9:.2f} GB" if item.peak_bytes else ""),
            file=sys.stderr if options.json else sys.stdout,
            flush=True,
        )


if __name__ == "__main__":
    main()
