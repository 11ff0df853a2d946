"""What both engines are asked to do, and the one loop that times them: neither is measured by other code than its rival.

A child process loads its model, takes a `Job` as a JSON file, runs everything once and prints what it says about itself. Then
it runs one phase for every line on stdin and prints the tokens per second, so that two children can be measured in turn within
seconds: a machine's memory may change its speed from one minute to the next.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
_COMPARED = 8  # decode steps whose logits are kept for the comparison


@dataclass(frozen=True)
class Job:
    """Token ids only. `decode` follows `decode_prompt`, whatever the model would have chosen: both engines route alike."""

    model: str  # folder or file
    threads: int
    warm_up: list[int]
    prompts: list[list[int]]
    decode_prompt: list[int]
    decode: list[int]
    logits: str  # file to save the compared logits in

    @property
    def context(self) -> int:
        return max(len(self.warm_up), *map(len, self.prompts), len(self.decode_prompt) + len(self.decode)) + 1


class Runner(Protocol):
    """A loaded model with a context for one sequence. A result is valid until the next call."""

    def read(self, tokens: Sequence[int]) -> Logits:
        """Logits [V] after `tokens`, from an empty context."""

    def step(self, token: int) -> Logits:
        """Logits [V] after one more token."""


def warm_up(runner: Runner, job: Job) -> None:
    """Everything is run once before it is timed, so that what is read once per model (experts, pages) is in memory."""
    runner.read(job.warm_up)
    compared = [runner.read(job.decode_prompt).copy()]
    for token in job.decode:
        logits = runner.step(token)
        if len(compared) <= _COMPARED:
            compared.append(logits.copy())
    np.save(job.logits, np.stack(compared))
    for prompt in job.prompts:
        runner.read(prompt)


def rate(runner: Runner, job: Job, phase: str) -> float:
    """Tokens per second of "decode", or of reading the prompt of that length."""
    if phase == "decode":
        runner.read(job.decode_prompt)
        return len(job.decode) / _seconds(lambda: [runner.step(token) for token in job.decode])
    prompt = next(prompt for prompt in job.prompts if len(prompt) == int(phase))
    return len(prompt) / _seconds(lambda: runner.read(prompt))


def _seconds(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def child_main(load: Callable[[Job], tuple[Runner, dict[str, Any]]]) -> None:
    """Entry of a child: `python -m tests.perf.<engine> job.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    job = Job(**json.loads(parser.parse_args().job.read_text()))
    runner, facts = load(job)
    warm_up(runner, job)
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        print(rate(runner, job, line.strip()), flush=True)
