"""One mutable timeline of tokens: hand over the whole prompt, it reuses what it has read; step, rewind. Knows no text."""

import time
from collections.abc import Callable, Sequence

import torch

from engine.experts.run import ExpertRunner
from engine.kv.cache import KvCache
from engine.meter import Link, Meter, Phase, Traffic, merged
from engine.models.layers import Model
from engine.plan.plan import PREFILL_CHUNK
from engine.tiers.disk import DiskReader


class Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The pass was given up at a layer's edge; the session stands where it stood before the pass."""


class Session:
    """Tokens that the KV cache holds, and the logits after them. Not thread-safe.

    `dense_bytes` is what each pass reads beside the experts, for the meter.
    """

    def __init__(
        self, model: Model, kv: KvCache, experts: ExpertRunner, reader: DiskReader, meter: Meter, dense_bytes: int
    ) -> None:
        self._model, self._kv, self._experts = model, kv, experts
        self._reader, self._meter, self._dense_bytes = reader, meter, dense_bytes
        self.tokens: list[int] = []

    @property
    def capacity(self) -> int:
        return self._kv.capacity

    def reusable(self, tokens: Sequence[int]) -> int:
        """How many leading tokens need not be read again; at least the last one always is, for its logits."""
        common = 0
        for ours, theirs in zip(self.tokens, tokens[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        return common

    def sync(
        self,
        tokens: Sequence[int],
        should_stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, Traffic], None] = lambda *_: None,
    ) -> tuple[torch.Tensor, Traffic]:
        """Make the timeline equal to `tokens`, in chunks; returns the logits [V] after them and the prefill's traffic.

        `progress(count, traffic)` after each chunk with the tokens that are in the cache and what the chunk moved.
        Raises `Cancelled` and `EngineError`.
        """
        assert 0 < len(tokens) <= self.capacity, f"{len(tokens)} tokens do not fit {self.capacity}"
        self.rewind(self.reusable(tokens))
        logits, records = torch.empty(0), []
        while len(self.tokens) < len(tokens):
            chunk = tokens[len(self.tokens) : len(self.tokens) + PREFILL_CHUNK]
            self._begin(Phase.PREFILL, len(chunk))
            logits = self._forward(chunk, should_stop)
            records.append(self._end())
            progress(len(self.tokens), records[-1])
        return logits, merged(records)

    def step(self, token: int, should_stop: Callable[[], bool] = lambda: False) -> tuple[torch.Tensor, Traffic]:
        """Append one token; returns the logits [V] after it and the traffic. Raises `Cancelled` and `EngineError`."""
        self._begin(Phase.DECODE, 1)
        logits = self._forward([token], should_stop)
        return logits, self._end()

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        self._kv.truncate(length)
        del self.tokens[length:]

    def _begin(self, phase: Phase, tokens: int) -> None:
        self._reader.take_busy_seconds()
        self._meter.begin(phase, tokens)

    def _end(self) -> Traffic:
        self._meter.add(Link.DISK, 0, self._reader.take_busy_seconds())
        if self._reader.notice:  # what the file cache served did not come from the drive
            self._meter.derived.add(Link.DISK)
        return self._meter.end()

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], should_stop: Callable[[], bool]) -> torch.Tensor:
        begun, in_experts = time.perf_counter(), 0.0

        def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            nonlocal in_experts
            if should_stop():
                raise Cancelled
            entered = time.perf_counter()
            y = self._experts(layer, x, ids, weights)
            in_experts += time.perf_counter() - entered
            return y

        logits = self._model(torch.tensor(tokens), self._kv, experts)
        self._kv.advance(len(tokens))
        self.tokens.extend(tokens)
        kv_bytes = self._kv.length * self._kv.bytes_per_token
        self._meter.add(Link.RAM, self._dense_bytes + kv_bytes, time.perf_counter() - begun - in_experts)
        return logits
