"""Stoker and llama.cpp on the same weights, the same tokens and the same cores, in turn: decode, prefill and their ratios.

`python -m tests.perf.vs_llamacpp [--shape qwen3-30b-a3b gpt-oss-20b] [--format mxfp4] [--layers 12] [--rounds 3]
[--prompts 16,64,512] [--json]`, in the repository's root. The two files are made once and kept in the cache folder.

Each round runs Stoker, then llama.cpp, in a process of their own that loads, runs everything once and is then timed by the
same loop (`tests.perf.job`). Ratios are taken within a round. Token ids are random, so that neither text nor sampling is part
of it; the logits of both are compared, so that a difference of speed is none of work. The memory's read ceiling is measured
before each run. llama.cpp has its best settings, see `tests.perf.llama`; its experts are the same values re-blocked, which it may
repack. Plain matrices are F16 in its file, which it decodes faster than BF16 (best of 18 runs on a busy 2-core Zen 5: 53.7 against 48.9
tokens/s; BF16 prefills 7 % faster: --dense bf16). Nothing here is asserted about time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from gguf import GGMLQuantizationType as Type
from platformdirs import user_cache_path

from tests.perf.ceiling import read_ceiling_gbps
from tests.perf.encode import ENCODINGS
from tests.perf.gguf_twin import write_twin
from tests.perf.job import Job, Measurement
from tests.perf.layout import Routing
from tests.perf.routing import RoutingStatistics, check_routing, token_ids
from tests.perf.shapes import SHAPES, Shape
from tests.perf.synthetic import make

_ROOT = Path(__file__).parents[2]
_MOST_DIFFERENT = 0.05  # of the logits' norm; rounded activations give 0.004, an expert gone missing 0.1
_DECODED, _DECODE_PROMPT, _WARM_UP = 64, 16, 512
_SEED = 0


@dataclass(frozen=True)
class Round:
    ceiling_gbps: float
    stoker: Measurement
    llama: Measurement
    difference: float  # of the logits, relative

    def ratio(self, phase: str) -> float:
        return median(rates(self.stoker, phase)) / median(rates(self.llama, phase))


def rates(measurement: Measurement, phase: str) -> list[float]:
    return measurement.decode if phase == "decode" else measurement.prefill[phase]


def main() -> None:
    options = _options()
    results = {}
    for name in options.shape:
        shape = SHAPES[name].cut(options.layers)
        label = f"{name}-{options.format}-{options.layers}-{options.routing}-{options.attention}"
        folder = make(options.folder / label, shape, options.format, options.layers, _SEED, options.routing, options.attention)
        twin = write_twin(folder, options.folder / f"{label}-{options.dense}.gguf", Type[options.dense.upper()])
        with tempfile.TemporaryDirectory() as scratch:
            rounds = [_round(folder, twin, shape, options, Path(scratch)) for _ in range(options.rounds)]
        print(report(label, rounds, options.prompts), file=sys.stderr if options.json else sys.stdout, flush=True)
        check(rounds, shape, options.routing)
        results[name] = summary(rounds, options.prompts)
    if options.json:
        print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=[*SHAPES], default=["qwen3-30b-a3b", "gpt-oss-20b"])
    parser.add_argument("--format", choices=[*ENCODINGS], default="mxfp4", help="of the experts")
    parser.add_argument(
        "--attention", choices=["plain", "encoded"], default="plain", help="encoded: in the experts' format too"
    )
    parser.add_argument("--dense", choices=["f16", "bf16"], default="f16", help="what is plain, in the GGUF file")
    parser.add_argument("--routing", choices=["uniform", "skewed"], default="uniform")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="timed runs of each phase in a round")
    parser.add_argument("--prompts", type=lambda text: [int(item) for item in text.split(",")], default=[16, 64, 512])
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--folder", type=Path, default=user_cache_path("stoker", appauthor=False) / "perf")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _round(folder: Path, twin: Path, shape: Shape, options: argparse.Namespace, scratch: Path) -> Round:
    """Stoker, then llama.cpp; one is in memory at a time."""
    ceilings, measured, logits = [], [], []
    for engine, model in (("stoker", folder), ("llama", twin)):
        saved = scratch / f"{engine}.npy"
        job = _job(str(model), str(saved), shape, options)
        ceilings.append(read_ceiling_gbps(options.threads))
        measured.append(_run(engine, job, scratch))
        logits.append(np.load(saved))
    difference = float(np.linalg.norm(logits[0] - logits[1]) / np.linalg.norm(logits[0]))
    return Round(max(ceilings), measured[0], measured[1], difference)


def _job(model: str, logits: str, shape: Shape, options: argparse.Namespace) -> Job:
    def tokens(count: int, seed: int) -> list[int]:
        return token_ids(shape.vocab, count, seed, options.routing)

    decode = tokens(_DECODE_PROMPT + _DECODED, 1)
    return Job(
        model=model,
        threads=options.threads,
        warm_up=tokens(_WARM_UP, 2),
        prompts=[tokens(length, 3 + length) for length in options.prompts],
        decode_prompt=decode[:_DECODE_PROMPT],
        decode=decode[_DECODE_PROMPT:],
        repeats=options.repeats,
        logits=logits,
    )


def _run(engine: str, job: Job, scratch: Path) -> Measurement:
    """In a child process. Exits with its last words where it fails."""
    file = scratch / "job.json"
    file.write_text(json.dumps(asdict(job)))
    command = [sys.executable, "-m", f"tests.perf.{engine}", str(file)]
    child = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if child.returncode:
        raise SystemExit(f"{engine} failed on {job.model}:\n{child.stderr[-2000:]}")
    return Measurement(**json.loads(child.stdout.splitlines()[-1]))


def check(rounds: list[Round], shape: Shape, routing: Routing) -> None:
    """Exits where the two did different work, or routing is not what was asked for."""
    worst = max(item.difference for item in rounds)
    if worst > _MOST_DIFFERENT:
        raise SystemExit(f"The engines' logits differ by {worst:.3f}: they computed different models.")
    check_routing(RoutingStatistics(**rounds[0].stoker.facts["routing"]), shape, routing)


def summary(rounds: list[Round], prompts: list[int]) -> dict[str, Any]:
    """Medians of the ratios within a round."""
    decode = median([rate for item in rounds for rate in item.stoker.decode])
    token_bytes = rounds[0].stoker.facts["token_bytes"]
    ceiling = max(item.ceiling_gbps for item in rounds)
    return {
        "decode_ratio": round(median(item.ratio("decode") for item in rounds), 3),
        "prefill_ratio": {str(length): round(median(item.ratio(str(length)) for item in rounds), 3) for length in prompts},
        "decode_of_ceiling": round(decode * token_bytes / ceiling / 1e9, 3),
        "decode_tokens_per_s": round(decode, 2),
        "ceiling_gbps": round(ceiling, 1),
        "logits_difference": round(max(item.difference for item in rounds), 5),
    }


def report(label: str, rounds: list[Round], prompts: list[int]) -> str:
    """Tokens per second, min / median / max over all rounds, and the ratios of each round."""
    lines = [f"{label}   {'Stoker':>24} {'llama.cpp':>24}   ratio"]
    for phase in ("decode", *map(str, prompts)):
        ours, theirs = ([rate for item in rounds for rate in rates(getattr(item, name), phase)] for name in ("stoker", "llama"))
        ratios = [item.ratio(phase) for item in rounds]
        title = phase if phase == "decode" else f"prefill {phase}"
        lines.append(f"  {title:{len(label)}} {_spread(ours):>24} {_spread(theirs):>24}   {_spread(ratios)}")
    facts, result = rounds[0].stoker.facts, summary(rounds, prompts)
    lines.append(
        f"  {facts['token_bytes'] / 1e6:.0f} MB per decoded token; memory reads {result['ceiling_gbps']} GB/s: Stoker decodes at "
        f"{result['decode_of_ceiling']:.0%} of that; logits differ by {result['logits_difference']:.4f}"
    )
    lines.append("  routing: " + ", ".join(f"{key} {value:.4g}" for key, value in facts["routing"].items()))
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in (min(values), median(values), max(values)))


if __name__ == "__main__":
    main()
