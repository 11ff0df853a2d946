"""How long a model that no cache holds takes to its first token, beside the time its bytes take on this drive.

`python -m tests.perf.cold_start [--model FOLDER] [--rounds 3] [--prompt 16] [--json]`. The checkpoint's pages are dropped before each
round; the drive is measured by a plain direct-read loop just before and after it. What the first token needs are the dense
weights and every expert that the prompt meets.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

from platformdirs import user_cache_path

from engine.meter import Link
from engine.units import MB
from tests.perf.drive import best_read_gbps, drop_cached
from tests.perf.routing import token_ids
from tests.perf.stoker import Stoker

_MODEL = user_cache_path("stoker", appauthor=False) / "perf" / "qwen3-30b-a3b-mxfp4-12-uniform-encoded"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=_MODEL, help="made by tests.perf.vs_llamacpp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = [_round(options.model, options.prompt) for _ in range(options.rounds)]
    for seconds, nbytes, gbps in rounds:
        ideal = nbytes / gbps / 1e9
        print(
            f"{seconds:.2f} s for {nbytes / 1e9:.2f} GB; the drive gives {gbps:.2f} GB/s: {ideal:.2f} s, ratio {seconds / ideal:.2f}"
        )
    if options.json:
        print(json.dumps({"cold_start_ratio": round(median(s * gbps * 1e9 / nbytes for s, nbytes, gbps in rounds), 3)}))


def _round(folder: Path, prompt: int) -> tuple[float, int, float]:
    """Seconds to the first token, bytes that it needed, GB/s of the drive."""
    shards = sorted(folder.glob("*.safetensors"))
    for shard in shards:
        drop_cached(shard)
    before = best_read_gbps(shards[0], int(2.5 * MB))
    begun = time.perf_counter()
    stoker = Stoker(folder, max(prompt + 1, 256))
    tokens = token_ids(stoker.source.footprint.vocab_size, prompt, 5, "uniform")
    _, traffic = stoker.session.sync(tokens)
    seconds = time.perf_counter() - begun
    stoker.close()
    nbytes = stoker.source.footprint.dense_bytes + traffic.links[Link.DISK].bytes
    return seconds, nbytes, max(before, best_read_gbps(shards[0], int(2.5 * MB)))


if __name__ == "__main__":
    main()
