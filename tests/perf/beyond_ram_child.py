"""One engine decoding given tokens within the memory it has: `python -m tests.perf.beyond_ram_child job.json`.

Prints a `Result` as its last line. Both engines are timed by the same loop.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.config import Wishes
from engine.engine import plan_for
from engine.experts.trace import read_trace
from engine.kernels.kernels import open_kernels
from engine.meter import Link, Traffic, merged
from engine.parts import open_parts
from engine.session import Session
from engine.source import inspect
from engine.tiers.disk import DiskReader

_CONTEXT = 512


@dataclass(frozen=True)
class Job:
    """`trace` forces the routing of Stoker's decoded tokens to what a file recorded."""

    engine: str  # stoker or llama
    model: str
    threads: int
    prompt: list[int]
    warm_up: list[int]
    timed: list[int]
    expert_ram: str | None = None
    trace: str | None = None


@dataclass(frozen=True)
class Result:
    """Per decoded token, where not said otherwise; the last three are Stoker's alone."""

    tokens_per_s: float
    disk_bytes: float = 0.0
    missed_bytes: float = 0.0
    unasked_bytes: float = 0.0
    disk_gbps: float = 0.0  # while a read was in flight
    disk_busy_s: float = 0.0
    stall_s: float = 0.0
    ram_s: float = 0.0
    hit_rate: float = 0.0
    slots: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    job = Job(**json.loads(parser.parse_args().job.read_text()))
    print(json.dumps(asdict({"stoker": _stoker, "llama": _llama}[job.engine](job))), flush=True)


def _timed(step: Callable[[int], object], tokens: Sequence[int]) -> float:
    """Tokens per second."""
    begun = time.perf_counter()
    for token in tokens:
        step(token)
    return len(tokens) / (time.perf_counter() - begun)


def _llama(job: Job) -> Result:
    from tests.perf.llama import Llama, quiet

    quiet()
    llama = Llama(job.model, job.threads, _CONTEXT, repack=False)
    llama.read(job.prompt)
    for token in job.warm_up:
        llama.step(token)
    return Result(_timed(llama.step, job.timed))


def _stoker(job: Job) -> Result:
    source = inspect(Path(job.model))
    plan = plan_for(source, Wishes(expert_ram=job.expert_ram, context=_CONTEXT))
    reader = DiskReader()
    kernels, notice = open_kernels()
    session = Session(open_parts(source, plan, reader, kernels), reader)
    if job.trace:
        session._parts.experts = _Forced(session._parts.experts, Path(job.trace))  # type: ignore[assignment]
    session.sync(job.prompt)
    for token in job.warm_up:
        session.step(token)
    records: list[Traffic] = []
    rate = _timed(lambda token: records.append(session.step(token)[1]), job.timed)
    total, count = merged(records), len(records)
    disk, ram = total.links[Link.DISK], total.links[Link.RAM]
    return Result(
        tokens_per_s=rate,
        disk_bytes=disk.bytes / count,
        missed_bytes=(disk.bytes - total.unasked_bytes) / count,
        unasked_bytes=total.unasked_bytes / count,
        disk_gbps=disk.gbps,
        disk_busy_s=disk.seconds / count,
        stall_s=total.stall_seconds / count,
        ram_s=ram.seconds / count,
        hit_rate=total.hits / (total.hits + total.misses),
        slots=session.num_slots,
        facts={
            "notice": f"{notice} {reader.notice}".strip(),
            "experts": source.footprint.experts_total,
            "expert_bytes": source.footprint.expert_bytes,
        },
    )


class _Forced:
    """Stands between a session's model and its experts, and routes each decoded token as a trace has it.

    The recorded layers are taken from the first on, so many as the model has, with the recorder's own top-k.
    """

    def __init__(self, run: Any, trace: Path) -> None:
        self._run = run
        run._look_ahead = lambda *_: []  # the model's own routers would guess what it is not allowed to choose
        self._chosen: dict[int, list[tuple[int, ...]]] = {}
        for routing in read_trace(trace).decoded():
            self._chosen.setdefault(routing.layer, []).append(routing.experts)
        self._steps: dict[int, int] = dict.fromkeys(self._chosen, 0)

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if len(ids) > 1:
            y: torch.Tensor = self._run(layer, x, ids, weights)
            return y
        experts = self._chosen[layer][self._steps[layer] % len(self._chosen[layer])]
        self._steps[layer] += 1
        count = len(experts)
        y = self._run(layer, x, torch.tensor([experts]), weights[:, :count] / weights[:, :count].sum())
        return y  # noqa: RET504 - typed above

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)


if __name__ == "__main__":
    main()
