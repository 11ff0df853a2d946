"""Stoker and llama.cpp on the same weights, the same tokens and the same cores, in turn: decode, prefill and their ratios.

`python -m tests.perf.vs_llamacpp [--shape qwen3-30b-a3b gpt-oss-20b] [--format mxfp4] [--layers 12] [--rounds 7]
[--prompts 16,64,512] [--json]`, in the repository's root. The two files are made once and kept in the cache folder.

Both are loaded, each in a process of its own that runs everything once; then they are timed in turn, seconds apart, by the same
loop (`tests.perf.job`), and the memory's read ceiling just before each pair. Ratios are taken within a pair. Token ids are random,
so that neither text nor sampling is part of it; the logits of both are compared, so that a difference of speed is none of work.
llama.cpp has its best settings, see `tests.perf.llama`; its experts are the same values re-blocked, which it may repack. Plain
matrices are F16 in its file, which it decodes faster than BF16 (best of 18 runs on a busy 2-core Zen 5: 53.7 against 48.9 tokens/s;
BF16 prefills 7 % faster: --dense bf16). Nothing here is asserted about time.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import psutil
from gguf import GGMLQuantizationType as Type
from platformdirs import user_cache_path

from tests.perf.ceiling import read_ceiling_gbps
from tests.perf.encode import ENCODINGS
from tests.perf.gguf_twin import write_twin
from tests.perf.job import Job
from tests.perf.layout import Routing
from tests.perf.routing import RoutingStatistics, check_routing, token_ids
from tests.perf.shapes import SHAPES, Shape
from tests.perf.synthetic import Attention, make

_ROOT = Path(__file__).parents[2]
_MOST_DIFFERENT = 0.05  # of the logits' norm; rounded activations give 0.004, an expert gone missing 0.1
_DECODED, _DECODE_PROMPT, _WARM_UP = 64, 16, 512
_SEED = 0


@dataclass(frozen=True)
class Pair:
    """One phase, by both engines within seconds: tokens per second, and what the memory gave just before."""

    ceiling_gbps: float
    stoker: float
    llama: float

    @property
    def ratio(self) -> float:
        return self.stoker / self.llama


@dataclass(frozen=True)
class Comparison:
    """Pairs by phase: "decode", or a prompt's length. `difference` of the logits is relative."""

    pairs: dict[str, list[Pair]]
    difference: float
    facts: dict[str, Any]  # what Stoker says about itself


def main() -> None:
    options = _options()
    results = {}
    for name in options.shape:
        shape = SHAPES[name].cut(options.layers)
        attention: Attention = options.attention or (
            "plain" if shape.model_type == "gpt_oss" else "encoded"
        )  # gpt-oss is published so
        label = f"{name}-{options.format}-{options.layers}-{options.routing}-{attention}"
        folder = make(options.folder / label, shape, options.format, options.layers, _SEED, options.routing, attention)
        twin = write_twin(folder, options.folder / f"{label}-{options.dense}.gguf", Type[options.dense.upper()])
        with tempfile.TemporaryDirectory() as scratch:
            found = _compare(folder, twin, shape, options, Path(scratch))
        print(report(label, found), file=sys.stderr if options.json else sys.stdout, flush=True)
        check(found, shape, options.routing)
        results[name] = summary(found)
    if options.json:
        print(json.dumps(results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=[*SHAPES], default=["qwen3-30b-a3b", "gpt-oss-20b"])
    parser.add_argument("--format", choices=[*ENCODINGS], default="mxfp4", help="of the experts")
    parser.add_argument(
        "--attention", choices=["plain", "encoded"], help="projections and head: encoded as the experts are, or plain"
    )
    parser.add_argument("--dense", choices=["f16", "bf16"], default="f16", help="what is plain, in the GGUF file")
    parser.add_argument("--routing", choices=["uniform", "skewed"], default="uniform")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of each phase")
    parser.add_argument("--prompts", type=lambda text: [int(item) for item in text.split(",")], default=[16, 64, 512])
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--folder", type=Path, default=user_cache_path("stoker", appauthor=False) / "perf")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _compare(folder: Path, twin: Path, shape: Shape, options: argparse.Namespace, scratch: Path) -> Comparison:
    with _Child("stoker", folder, shape, options, scratch) as stoker, _Child("llama", twin, shape, options, scratch) as llama:
        pairs: dict[str, list[Pair]] = {phase: [] for phase in ("decode", *map(str, options.prompts))}
        for _ in range(options.rounds):
            for phase, found in pairs.items():
                ceiling = read_ceiling_gbps(options.threads, passes=2)
                found.append(Pair(ceiling, stoker.rate(phase), llama.rate(phase)))
        difference = np.linalg.norm(stoker.logits - llama.logits) / np.linalg.norm(stoker.logits)
        return Comparison(pairs, float(difference), stoker.facts)


class _Child:
    """One engine in a process of its own. Exits with its last words where it fails."""

    def __init__(self, engine: str, model: Path, shape: Shape, options: argparse.Namespace, scratch: Path) -> None:
        saved, file, self._words = scratch / f"{engine}.npy", scratch / f"{engine}.json", scratch / f"{engine}.log"
        file.write_text(json.dumps(asdict(_job(str(model), str(saved), shape, options))))
        self._name = f"{engine} on {model}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.perf.{engine}", str(file)],
            cwd=_ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words.open("w"),
        )  # fmt: skip
        self.facts: dict[str, Any] = json.loads(self._line())
        self.logits = np.load(saved)

    def rate(self, phase: str) -> float:
        assert self._process.stdin
        print(phase, file=self._process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} failed:\n{self._words.read_text()[-2000:]}")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


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
        logits=logits,
    )


def check(found: Comparison, shape: Shape, routing: Routing) -> None:
    """Exits where the two did different work, or routing is not what was asked for."""
    if found.difference > _MOST_DIFFERENT:
        raise SystemExit(f"The engines' logits differ by {found.difference:.3f}: they computed different models.")
    check_routing(RoutingStatistics(**found.facts["routing"]), shape, routing)


def summary(found: Comparison) -> dict[str, Any]:
    """Medians over the pairs."""
    token_gb, decode = found.facts["token_bytes"] / 1e9, found.pairs["decode"]
    return {
        "decode_ratio": round(median(pair.ratio for pair in decode), 3),
        "prefill_ratio": {
            phase: round(median(pair.ratio for pair in pairs), 3) for phase, pairs in found.pairs.items() if phase != "decode"
        },
        "decode_of_ceiling": round(median(pair.stoker * token_gb / pair.ceiling_gbps for pair in decode), 3),
        "llama_of_ceiling": round(median(pair.llama * token_gb / pair.ceiling_gbps for pair in decode), 3),
        "decode_tokens_per_s": round(median(pair.stoker for pair in decode), 2),
        "ceiling_gbps": round(median(pair.ceiling_gbps for pair in decode), 1),
        "logits_difference": round(found.difference, 5),
    }


def report(label: str, found: Comparison) -> str:
    """Tokens per second and the ratios of the pairs, min / median / max."""
    lines = [f"{label}   {'Stoker':>24} {'llama.cpp':>24}   ratio"]
    for phase, pairs in found.pairs.items():
        title = phase if phase == "decode" else f"prefill {phase}"
        ours, theirs = _spread([pair.stoker for pair in pairs]), _spread([pair.llama for pair in pairs])
        lines.append(f"  {title:{len(label)}} {ours:>24} {theirs:>24}   {_spread([pair.ratio for pair in pairs])}")
    result = summary(found)
    lines.append(
        f"  {found.facts['token_bytes'] / 1e6:.0f} MB per decoded token; memory reads {result['ceiling_gbps']} GB/s: Stoker decodes "
        f"at {result['decode_of_ceiling']:.0%} of that, llama.cpp at {result['llama_of_ceiling']:.0%}; "
        f"logits differ by {result['logits_difference']:.4f}"
    )
    lines.append("  routing: " + ", ".join(f"{key} {value:.4g}" for key, value in found.facts["routing"].items()))
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in (min(values), median(values), max(values)))


if __name__ == "__main__":
    main()
