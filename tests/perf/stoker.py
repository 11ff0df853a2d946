"""Stoker's engine as a `Runner`: token ids in, logits out, all experts in RAM. Knows one checkpoint folder."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from engine.config import Wishes
from engine.engine import plan_for
from engine.kernels.kernels import open_kernels
from engine.parts import open_parts
from engine.session import Session
from engine.source import Source, inspect
from engine.tiers.disk import DiskReader
from tests.perf.job import Job, Logits, child_main
from tests.perf.routing import record_routing, routing_statistics


class Stoker:
    """Raises EngineError where the model does not load."""

    def __init__(self, folder: Path, context: int) -> None:
        self.source: Source = inspect(folder)
        self._reader = DiskReader()
        plan = plan_for(self.source, Wishes(expert_ram="100%", context=context))
        self.kernels, self.notice = open_kernels()
        self.session = Session(open_parts(self.source, plan, self._reader, self.kernels), self._reader)

    def read(self, tokens: Sequence[int]) -> Logits:
        self.session.rewind(0)
        return _numpy(self.session.sync(tokens)[0])

    def step(self, token: int) -> Logits:
        return _numpy(self.session.step(token)[0])

    @property
    def token_bytes(self) -> int:
        """Weights that one decoded token reads; its keys and values come on top, and are small at these lengths."""
        footprint = self.source.footprint
        experts = footprint.num_moe_layers * footprint.top_k * footprint.expert_bytes
        return footprint.dense_read_bytes + experts

    def close(self) -> None:
        self._reader.close()


def _numpy(logits: torch.Tensor) -> Logits:
    values: Logits = logits.numpy()
    return values


def _load(job: Job) -> tuple[Stoker, dict[str, Any]]:
    runner = Stoker(Path(job.model), max(16, job.context))
    statistics = routing_statistics(record_routing(runner.session, job.warm_up), runner.source.footprint.num_experts)
    return runner, {
        "token_bytes": runner.token_bytes,
        "routing": asdict(statistics),
        "isa": runner.kernels.isa,
        "notice": runner.notice,
    }


if __name__ == "__main__":
    child_main(_load)
