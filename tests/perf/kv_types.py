"""What each type that keys and values are kept in costs and brings: next-token distributions beside fp32, and speed far into a context.

`python -m tests.perf.kv_types [--model demo] [--context 4096] [--positions 128] [--rounds 5]`

Quality: the greedy text of fp32 read token by token after a question; the mean Kullback-Leibler divergence in nats and how often the
likeliest token is another one. Speed: tokens after so many tokens of context, the types in turns; medians of each turn's tokens/s.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from engine.config import KvType, Wishes
from engine.engine import Engine, plan_for
from engine.kernels.native import Native
from engine.kernels.threads import kernel_threads
from engine.parts import open_parts
from engine.session import Session
from engine.source import inspect
from engine.store.library import find_model, models_folder
from engine.tiers.disk import DiskReader
from engine.units import format_bytes
from tests.perf.accuracy import QUESTION

_TOKENS = 16  # of one turn


@contextmanager
def _opened(folder: Path, kernels: Native, kv_type: KvType, context: int) -> Iterator[tuple[Session, int]]:
    """A session, and the bytes of keys and values that its plan has."""
    source, reader = inspect(folder), DiskReader()
    try:
        plan = plan_for(source, Wishes(expert_ram="100%", context=context, kv_type=kv_type))
        yield Session(open_parts(source, plan, reader, kernels), reader), plan.kv_bytes
    finally:
        reader.close()


def distributions(folder: Path, prompt: list[int], count: int, kernels: Native) -> dict[KvType, tuple[float, int]]:
    """KL in nats and other likeliest tokens, by type."""
    tokens, expected = list(prompt), torch.empty(0)
    found: dict[KvType, tuple[float, int]] = {}
    for kv_type in KvType:
        with _opened(folder, kernels, kv_type, len(prompt) + count + 1) as (session, _):
            rows = [session.sync(tokens[: len(prompt)])[0]]
            for place in range(count):
                if kv_type is KvType.FP32:
                    tokens.append(int(rows[-1].argmax()))
                rows.append(session.step(tokens[len(prompt) + place])[0])
        ours = torch.stack(rows).log_softmax(-1)
        expected = ours if kv_type is KvType.FP32 else expected
        kl = (expected.exp() * (expected - ours)).sum(-1).mean().item()
        found[kv_type] = kl, int((expected.argmax(-1) != ours.argmax(-1)).sum())
    return found


def speeds(folder: Path, prompt: list[int], context: int, rounds: int, kernels: Native) -> dict[KvType, tuple[float, int]]:
    """Tokens/s after `context` tokens, and bytes for keys and values, by type."""
    text = (prompt * (context // len(prompt) + 1))[:context]
    rates: dict[KvType, list[float]] = {kv_type: [] for kv_type in KvType}
    sizes = {}
    with (
        _opened(folder, kernels, KvType.FP32, context + _TOKENS) as one,
        _opened(folder, kernels, KvType.BF16, context + _TOKENS) as two,
        _opened(folder, kernels, KvType.Q8, context + _TOKENS) as three,
    ):
        opened = dict(zip(KvType, (one, two, three), strict=True))
        for kv_type, (session, nbytes) in opened.items():
            session.sync(text)
            sizes[kv_type] = nbytes
        for _ in range(rounds):
            for kv_type, (session, _) in opened.items():
                session.rewind(context - 1)
                session.step(text[-1])
                begun = perf_counter()
                for _ in range(_TOKENS - 1):
                    session.step(1)
                rates[kv_type].append((_TOKENS - 1) / (perf_counter() - begun))
    return {kv_type: (median(rates[kv_type]), sizes[kv_type]) for kv_type in KvType}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    folder, kernels = find_model(options.model, models_folder()), Native(kernel_threads())
    engine = Engine(folder, Wishes(expert_ram="100%"))
    prompt = engine.encode(QUESTION)
    engine.close()
    quality = distributions(folder, prompt, options.positions, kernels)
    speed = speeds(folder, prompt, options.context, options.rounds, kernels)
    print(f"{'kept as':10}{'KL, nats':>10}{'other tokens':>14}{'tokens/s':>10}{'memory':>12}")
    for kv_type in KvType:
        kl, others = quality[kv_type]
        rate, nbytes = speed[kv_type]
        print(f"{kv_type:10}{kl:10.1e}{others:10} of {options.positions}{rate:8.1f}{format_bytes(nbytes):>12}")


if __name__ == "__main__":
    main()
