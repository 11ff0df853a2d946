"""What the native kernels' rounding costs: next-token distributions against the fp32 reference, token by token and in batches.

`python -m tests.perf.accuracy [--model demo] [--positions 256] [--json]`; prints the mean Kullback-Leibler divergence in nats,
and whether the likeliest token is the same. The text is the model's own, greedy.
"""

import argparse
import json
from pathlib import Path

import torch

from engine.config import Sampling, Wishes
from engine.engine import Engine, inspect, open_session, plan_for
from engine.kernels.kernels import Kernels
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from engine.kernels.threads import kernel_threads
from engine.protocol import ChatMessage
from engine.store.library import find_model, models_folder
from engine.tiers.disk import DiskReader

QUESTION = [ChatMessage("user", "Write a long story about a lighthouse keeper and the sea.")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = find_model(options.model, models_folder())
    engine = Engine(folder, Wishes(expert_ram="100%"))
    prompt = engine.encode(QUESTION)
    sampling = Sampling(max_tokens=options.positions, temperature=0)
    tokens = [*prompt, *(token.id for token in engine.generate(prompt, sampling))]
    engine.close()
    first = len(prompt)
    expected = _distributions(folder, tokens, first, Reference(), 1)
    result = {}
    for name, chunk in (("decode", 1), ("batches of 16", 16)):
        found = _distributions(folder, tokens, first, Native(kernel_threads()), chunk)
        reference = expected[chunk - 1 :: chunk][: len(found)]
        result[name] = {
            "positions": len(found),
            "kl_nats": (reference.exp() * (reference - found)).sum(-1).mean().item(),
            "same_likeliest": (reference.argmax(-1) == found.argmax(-1)).float().mean().item(),
        }
    if options.json:
        print(json.dumps(result))
    for name, figures in result.items() if not options.json else ():
        print(f"{name:14} {figures}")


def _distributions(folder: Path, tokens: list[int], first: int, kernels: Kernels, chunk: int) -> torch.Tensor:
    """Log-probabilities [N, V] after each `chunk` tokens that follow the first `first`, read `chunk` at a time."""
    source = inspect(folder)
    reader = DiskReader()
    session = open_session(source, plan_for(source, Wishes(expert_ram="100%")), reader, kernels)
    session.sync(tokens[:first])
    rows = []
    for end in range(first + chunk, len(tokens) + 1, chunk):
        logits, _ = session.sync(tokens[:end])
        rows.append(logits.log_softmax(-1))
    reader.close()
    return torch.stack(rows)


if __name__ == "__main__":
    main()
