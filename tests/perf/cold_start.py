"""How long a model that no cache holds takes to its first token, beside the time its bytes take on this drive.

`python -m tests.perf.cold_start [--model FOLDER] [--rounds 3] [--prompt 16] [--json]`. The checkpoint's pages are dropped before each
round; the drive is measured by a plain direct-read loop just before and after it. What the first token needs are the dense
weights and every expert that the prompt meets.

Memory that was free for some seconds may have gone back to a virtual machine's host, and then takes longer to touch than to
read a drive into. Such memory is got back before each round, so that only this system's own part of that is measured; with
`--fresh` it is left as it is, and the loop beside it reads into such memory too.
"""

import argparse
import json
import time
from pathlib import Path
from statistics import median

from platformdirs import user_cache_path

from engine.meter import Link
from engine.units import GB, MB
from tests.perf.drive import best_read_gbps, drop_cached, fresh_read_gbps, touch
from tests.perf.routing import token_ids
from tests.perf.stoker import Stoker

_MODEL = user_cache_path("stoker", appauthor=False) / "perf" / "qwen3-30b-a3b-mxfp4-12-uniform-encoded"

_PIECE = int(2.5 * MB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=_MODEL, help="made by tests.perf.vs_llamacpp")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--fresh", action="store_true", help="memory as it is, for the engine and for the loop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = [_round(options.model, options.prompt, is_fresh=options.fresh) for _ in range(options.rounds)]
    for seconds, nbytes, gbps in rounds:
        ideal = nbytes / gbps / 1e9
        print(
            f"{seconds:.2f} s for {nbytes / 1e9:.2f} GB; the drive gives {gbps:.2f} GB/s: {ideal:.2f} s, ratio {seconds / ideal:.2f}"
        )
    if options.json:
        print(json.dumps({"cold_start_ratio": round(median(s * gbps * 1e9 / nbytes for s, nbytes, gbps in rounds), 3)}))


def _round(folder: Path, prompt: int, *, is_fresh: bool) -> tuple[float, int, float]:
    """Seconds to the first token, bytes that it needed, GB/s of the drive."""
    shards = sorted(folder.glob("*.safetensors"))
    for shard in shards:
        drop_cached(shard)
    before = _drive_gbps(shards[0], is_fresh=is_fresh)
    if not is_fresh:
        touch(sum(shard.stat().st_size for shard in shards))
    begun = time.perf_counter()
    stoker = Stoker(folder, max(prompt + 1, 256))
    tokens = token_ids(stoker.source.footprint.vocab_size, prompt, 5, "uniform")
    _, traffic = stoker.session.sync(tokens)
    seconds = time.perf_counter() - begun
    nbytes = stoker.source.footprint.dense_bytes + traffic.links[Link.DISK].bytes
    stoker.close()
    del stoker  # and with it its memory
    return seconds, nbytes, max(before, _drive_gbps(shards[0], is_fresh=is_fresh))


def _drive_gbps(shard: Path, *, is_fresh: bool) -> float:
    return fresh_read_gbps(shard, _PIECE, 3 * GB) if is_fresh else best_read_gbps(shard, _PIECE)


if __name__ == "__main__":
    main()
