"""How near Stoker's decoding comes to what the memory gives, for one shape: `python -m tests.perf.decode SHAPE [--layers 8]`.

Everything is in RAM. Each round times a run of tokens between two readings of the memory's ceiling; the share is the bytes of a
token's weights over its time, over the mean of both. For shapes of which llama.cpp makes no twin; see `tests.perf.vs_llamacpp`.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import psutil
from platformdirs import user_cache_path

from tests.perf.ceiling import read_ceiling_gbps
from tests.perf.encode import ENCODINGS
from tests.perf.routing import token_ids
from tests.perf.shapes import SHAPES
from tests.perf.stoker import Stoker
from tests.perf.synthetic import make

_TOKENS = 48


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.decode", description=__doc__)
    parser.add_argument("shape", choices=[*SHAPES])
    parser.add_argument("--format", choices=[*ENCODINGS], default="mxfp4", help="of the experts")
    parser.add_argument("--attention", choices=["plain", "encoded"], default="encoded")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=user_cache_path("stoker", appauthor=False) / "perf")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape].cut(options.layers)
    label = f"{options.shape}-{options.format}-{options.layers}-uniform-{options.attention}"
    folder = make(options.folder / label, shape, options.format, options.layers, 0, "uniform", options.attention)
    threads = psutil.cpu_count(logical=False) or 1
    runner = Stoker(folder, 1024)
    runner.read(token_ids(shape.vocab, 512, 2, "uniform"))
    tokens = token_ids(shape.vocab, _TOKENS, 1, "uniform")
    shares, speeds, ceilings = [], [], []
    for _ in range(options.rounds):
        runner.read(tokens[:16])
        before = read_ceiling_gbps(threads, passes=2)
        begun = time.perf_counter()
        for token in tokens:
            runner.step(token)
        seconds = (time.perf_counter() - begun) / len(tokens)
        ceilings.append((before + read_ceiling_gbps(threads, passes=2)) / 2)
        speeds.append(1 / seconds)
        shares.append(runner.token_bytes / seconds / 1e9 / ceilings[-1])
    runner.close()
    result = {
        "shape": label, "tokens_per_s": round(median(speeds), 2), "token_mb": round(runner.token_bytes / 1e6, 1),
        "ceiling_gbps": round(median(ceilings), 1), "of_ceiling": round(median(shares), 3),
        "of_ceiling_spread": [round(min(shares), 3), round(max(shares), 3)],
    }  # fmt: skip
    print(json.dumps(result) if options.json else "\n".join(f"{key:18} {value}" for key, value in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
