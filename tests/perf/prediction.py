"""Predicted beside measured: decoded tokens/s and the time to the first token, for models of several formats at three budgets.

`python -m tests.perf.prediction [--json] [--folder DIR] [--only NAME] [--budget 50%]`. Checkpoints of up to 4 GB are made one after
the other and removed again: the demo in two sizes, and published shapes cut in layers and vocabulary. Rates are measured before
and after each case, and a case is repeated where they disagree: some machines change their memory's speed within a minute.
Free memory is touched before, since some virtual machines give it back to their host.

Of synthetic models the prediction is told that routing is uniform and the next layer's router guessed right, as their maker forces
it (`tests.perf.layout`: the embedding dominates the stream). Of the demo it knows how often experts were found in an answer at half
of them, and that guesses are no better than chance.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from engine.config import Sampling, Wishes
from engine.demo import build
from engine.engine import plan_for
from engine.kernels.kernels import Kernels, open_kernels
from engine.measure import measure
from engine.parts import open_parts
from engine.plan.locality import UNIFORM, Locality, of_answers
from engine.plan.predict import Hits, decoded, prompt_seconds, resident_share
from engine.protocol import Plan
from engine.rates import Rates
from engine.sample import make_sampler
from engine.session import Session
from engine.source import Source, inspect
from engine.text.tokenizer import Tokenizer
from engine.tiers.arena import aligned_memory
from engine.tiers.disk import DiskReader
from tests.perf.routing import token_ids
from tests.perf.shapes import SHAPES
from tests.perf.synthetic import make

BUDGETS = ("100%", "50%", "25%")
PROMPT = 512
TOKENS = 64
AGREE = 0.08  # of the predictions before and after
DECODE_AIM, FIRST_TOKEN_AIM = 0.15, 0.25
_VOCAB = 32768  # else the head outweighs a few layers, and the embedding fills the drive
_SETTLE = 32
_MOST_TRIES = 4
_SPARE_BYTES = 2 << 30
_STORY = "Once upon a time a lighthouse keeper looked over the sea and thought about the ships that had passed in the night. "


def _synthetic(shape: str, encoding: str, layers: int) -> Callable[[Path], Path]:
    return lambda folder: make(folder / "model", replace(SHAPES[shape], vocab=_VOCAB), encoding, layers)


CASES: dict[str, Callable[[Path], Path]] = {
    "demo, 8 experts": lambda folder: build(folder, 8),
    "demo, 16 experts": lambda folder: build(folder, 16),
    "Qwen3-30B-A3B BF16": _synthetic("qwen3-30b-a3b", "bf16", 3),
    "Qwen3-30B-A3B FP8": _synthetic("qwen3-30b-a3b", "f8_e4m3", 4),
    "Qwen3-30B-A3B MXFP4": _synthetic("qwen3-30b-a3b", "mxfp4", 6),
    "gpt-oss-20b BF16": _synthetic("gpt-oss-20b", "bf16", 2),
    "gpt-oss-20b MXFP4": _synthetic("gpt-oss-20b", "mxfp4", 6),
}


@dataclass(frozen=True)
class Row:
    model: str
    budget: str
    predicted: float  # tokens/s
    measured: float
    predicted_first: float  # seconds, cold
    measured_first: float
    predicted_hits: float
    measured_hits: float
    tries: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def first_error(self) -> float:
        return self.predicted_first / self.measured_first - 1


@dataclass(frozen=True)
class Measured:
    seconds: float  # per decoded token
    first: float
    hits: float


class Subject:
    """One model with what its tokens are: random ones, or the demo's own text."""

    def __init__(self, folder: Path) -> None:
        self.source: Source = inspect(folder)
        self.is_demo = not (folder / "synthetic.json").exists()
        self.kernels: Kernels = open_kernels()[0]
        vocab = self.source.footprint.vocab_size
        self.prompt = token_ids(vocab, PROMPT, 1, "uniform")
        self.following = token_ids(vocab, 2048, 2, "uniform")
        if self.is_demo:
            self.prompt = Tokenizer(folder).encode(_STORY * 40)[:PROMPT]
        self.locality, self.recall = UNIFORM, 0.5 if self.is_demo else 1.0

    def plan(self, budget: str) -> Plan:
        return plan_for(self.source, Wishes(expert_ram=budget, context=2048))

    def rates(self) -> Rates:
        return measure(self.source, self.kernels, recall=self.recall)

    def run(self, plan: Plan) -> Measured:
        with self._session(plan) as session:
            sampler = make_sampler(Sampling(seed=0))
            begun = time.perf_counter()
            logits, _ = session.sync(self.prompt)
            token = self._next(logits, sampler, session, 0)
            first = time.perf_counter() - begun
            for number in range(_SETTLE):
                token = self._next(session.step(token)[0], sampler, session, number)
            hits = lookups = 0
            begun = time.perf_counter()
            for number in range(TOKENS):
                logits, traffic = session.step(token)
                token = self._next(logits, sampler, session, _SETTLE + number)
                hits, lookups = hits + traffic.hits, lookups + traffic.hits + traffic.misses
            return Measured((time.perf_counter() - begun) / TOKENS, first, hits / lookups)

    @contextmanager
    def _session(self, plan: Plan) -> Iterator[Session]:
        reader = DiskReader()
        try:
            yield Session(open_parts(self.source, plan, reader, self.kernels), reader)
        finally:
            reader.close()

    def _next(self, logits: torch.Tensor, sampler: Callable[..., int], session: Session, number: int) -> int:
        """Sampling costs what it does for a trained model; what random weights say is not followed."""
        if self.is_demo:
            return sampler(logits, session.tokens)
        sampler(4 * logits, session.tokens)
        return self.following[number]

    def learn(self) -> None:
        """How often the demo's experts were found in an answer with half of them in memory."""
        plan = self.plan("50%")
        found = of_answers([(resident_share(plan), self.run(plan).hits)])
        assert found is not None, "half of the experts are neither none nor all"
        self.locality = found


def _predicted(subject: Subject, plan: Plan, rates: Rates, locality: Locality) -> tuple[float, float, float]:
    """Seconds per token, to the first token, and the hit rate."""
    rate = locality.rates(resident_share(plan))[1]
    footprint = subject.source.footprint
    token = decoded(plan, footprint, rates, Hits(0.0, rate), PROMPT + _SETTLE + TOKENS // 2)
    return token.seconds, prompt_seconds(plan, footprint, rates, PROMPT, is_cold=True), rate


def _make_present(plan: Plan) -> None:
    """Free memory that a virtual machine gave back to its host within seconds is found again at a fortieth of the rate."""
    memory = torch.frombuffer(aligned_memory(plan.expert_ram_bytes + plan.dense_bytes + _SPARE_BYTES), dtype=torch.uint8)
    memory[::4096] = 1


def measure_case(name: str, subject: Subject, budget: str, note: Callable[[str], None]) -> Row:
    plan = subject.plan(budget)
    for tries in range(1, _MOST_TRIES + 1):
        _make_present(plan)
        before = subject.rates()
        _make_present(plan)
        measured = subject.run(plan)
        after = subject.rates()
        fresh = max(before.fresh_gbps, after.fresh_gbps)  # the run's memory was made present
        before, after = replace(before, fresh_gbps=fresh), replace(after, fresh_gbps=fresh)
        (token, first, rate), (other, first_after, _) = (
            _predicted(subject, plan, rates, subject.locality) for rates in (before, after)
        )
        row = Row(
            name, budget, 1 / math.sqrt(token * other), 1 / measured.seconds, math.sqrt(first * first_after), measured.first,
            rate, measured.hits, tries,
        )  # fmt: skip
        note(f"{row}\n  {before}\n  {after}\n  token {token:.4f} {other:.4f}, first {first:.3f} {first_after:.3f}")
        if abs(token / other - 1) <= AGREE:
            break
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(CASES), help="may be repeated")
    parser.add_argument("--budget", action="append", choices=BUDGETS, help="may be repeated")
    parser.add_argument("--folder", type=Path, help="keep the models here, for another run")
    parser.add_argument("--verbose", action="store_true", help="every try with its rates, on stderr")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    note: Callable[[str], None] = (lambda text: print(text, file=sys.stderr)) if options.verbose else lambda _: None
    rows: list[Row] = []
    for name in options.only or CASES:
        folder = (options.folder or Path(tempfile.mkdtemp(prefix="prediction-"))) / name.replace(" ", "-").replace(",", "")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            subject = Subject(CASES[name](folder))
            if subject.is_demo:
                subject.learn()
            rows += [measure_case(name, subject, budget, note) for budget in options.budget or BUDGETS]
        finally:
            if options.folder is None:
                shutil.rmtree(folder.parent, ignore_errors=True)
    if options.json:
        print(json.dumps([asdict(row) | {"error": row.error, "first_error": row.first_error} for row in rows]))
    else:
        print_table(rows)
    return int(any(abs(row.error) > DECODE_AIM or abs(row.first_error) > FIRST_TOKEN_AIM for row in rows))


def print_table(rows: list[Row]) -> None:
    print(
        "| model | experts in RAM | tokens/s predicted | measured | error | first token predicted | measured | error | hits |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.model} | {row.budget} | {row.predicted:.1f} | {row.measured:.1f} | {row.error:+.0%} "
            f"| {row.predicted_first:.2f} s | {row.measured_first:.2f} s | {row.first_error:+.0%} "
            f"| {row.predicted_hits:.0%} / {row.measured_hits:.0%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
