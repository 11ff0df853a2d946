"""What the native kernels' rounding costs, in every format: next-token distributions of one model against the fp32 reference.

`python -m tests.perf.accuracy [--model demo] [--positions 256] [--formats BF16 MXFP4 ...] [--json]`

The model's experts are written anew in each format into a temporary folder, and the reference computes in fp32 over the same
quantised weights, so that only the kernels' arithmetic differs. Its greedy text is what both read: token by token and in batches.
Printed are the mean Kullback-Leibler divergence in nats and whether the likeliest token was ever another one: in decode, never
means that the greedy text is the same. A table of each kernel's relative error on random data follows.
"""

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from engine.config import KvType, Wishes
from engine.engine import Engine, plan_for
from engine.kernels.kernels import Kernels
from engine.kernels.native import Native
from engine.kernels.reference import Reference, dequantise
from engine.kernels.threads import kernel_threads
from engine.kernels.weights import Weight
from engine.parts import open_parts
from engine.protocol import ChatMessage
from engine.session import Session
from engine.source import inspect
from engine.store.library import find_model, models_folder
from engine.tiers.disk import DiskReader
from tests.perf.kernel_errors import LIMITS, kernel_errors
from tests.perf.quantise import QUANTISERS
from tests.perf.reencode import reencode

QUESTION = [ChatMessage("user", "Write a long story about a lighthouse keeper and the sea.")]
PLAIN = "BF16"  # as the model is
BATCH = 16
MOST_NATS = 1e-3


@dataclass(frozen=True)
class Figure:
    format: str
    way: str  # decode, or batches
    positions: int
    kl_nats: float
    other_likeliest: int  # positions at which the likeliest token is not the reference's

    @property
    def is_good(self) -> bool:
        return self.kl_nats <= MOST_NATS and self.other_likeliest == 0


class CachedReference(Reference):
    """Keeps each matrix in fp32 once it was needed. Only for models that stay where they are in RAM."""

    def __init__(self) -> None:
        super().__init__()
        self._matrices: dict[tuple[int, int, int], torch.Tensor] = {}

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor:
        if not isinstance(weight, Weight):
            return super().linear(x, weight)
        key = weight.data.data_ptr(), weight.rows, weight.row_stride
        if key not in self._matrices:
            self._matrices[key] = dequantise(weight)
        y = x @ self._matrices[key].t()
        return y if weight.bias is None else y + weight.bias.float()


def compare(folder: Path, name: str, prompt: list[int], positions: int) -> list[Figure]:
    torch.set_num_threads(kernel_threads())  # for the reference; `open_kernels` had set one
    tokens, expected = _greedy(folder, prompt, positions, CachedReference())
    figures = []
    for way, chunk in (("decode", 1), (f"batches of {BATCH}", BATCH)):
        found = _read(folder, tokens, len(prompt), Native(kernel_threads()), chunk)
        reference = expected[chunk - 1 :: chunk][: len(found)]
        kl = (reference.exp() * (reference - found)).sum(-1).mean().item()
        others = int((reference.argmax(-1) != found.argmax(-1)).sum())
        figures.append(Figure(name, way, len(found), kl, others))
    return figures


def _open(folder: Path, kernels: Kernels, reader: DiskReader) -> Session:
    source = inspect(folder)
    plan = plan_for(source, Wishes(expert_ram="100%", kv_type=KvType.FP32))
    return Session(open_parts(source, plan, reader, kernels), reader)


def _greedy(folder: Path, prompt: list[int], positions: int, kernels: Kernels) -> tuple[list[int], torch.Tensor]:
    """`prompt` with as many of the likeliest tokens, whatever ends a turn, and the log-probabilities [N, V] after each."""
    reader = DiskReader()
    session = _open(folder, kernels, reader)
    logits, _ = session.sync(prompt)
    tokens, rows = list(prompt), []
    for _ in range(positions):
        tokens.append(int(logits.argmax()))
        logits, _ = session.step(tokens[-1])
        rows.append(logits.log_softmax(-1))
    reader.close()
    return tokens, torch.stack(rows)


def _read(folder: Path, tokens: list[int], first: int, kernels: Kernels, chunk: int) -> torch.Tensor:
    """Log-probabilities [N, V] after each `chunk` tokens that follow the first `first`, read `chunk` at a time."""
    reader = DiskReader()
    session = _open(folder, kernels, reader)
    session.sync(tokens[:first])
    rows = []
    for end in range(first + chunk, len(tokens) + 1, chunk):
        logits, _ = session.sync(tokens[:end])
        rows.append(logits.log_softmax(-1))
    reader.close()
    return torch.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--positions", type=int, default=256)
    parser.add_argument("--formats", nargs="*", default=[PLAIN, *QUANTISERS], choices=[PLAIN, *QUANTISERS])
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    source = find_model(options.model, models_folder())
    engine = Engine(source, Wishes(expert_ram="100%"))
    prompt = engine.encode(QUESTION)
    engine.close()
    figures: list[Figure] = []
    print(f"{'experts in':18}{'way':16}{'positions':>10}{'KL, nats':>11}{'other tokens':>14}")
    for name in options.formats:
        with tempfile.TemporaryDirectory(prefix="stoker-accuracy-") as scratch:
            folder = source if name == PLAIN else reencode(source, Path(scratch, "model"), QUANTISERS[name])
            for figure in compare(folder, name, prompt, options.positions):
                figures.append(figure)
                mark = "" if figure.is_good else "  beyond the limit"
                print(
                    f"{name:18}{figure.way:16}{figure.positions:10}{figure.kl_nats:11.1e}{figure.other_likeliest:14}{mark}",
                    flush=True,
                )
    print(f"\nRelative error on random data, {' and '.join(f'{limit:.0e} ({kind})' for kind, limit in LIMITS.items())} allowed")
    errors = kernel_errors()
    for error in errors:
        mark = "" if error.is_good else "  beyond the limit"
        print(f"{error.format:20}{error.kernel:8}{error.tokens:4} tokens{error.activations:>7}{error.relative:11.1e}{mark}")
    if options.json:
        print(json.dumps({"distributions": list(map(asdict, figures)), "kernels": list(map(asdict, errors))}))


if __name__ == "__main__":
    main()
