"""One mutable timeline of tokens: hand over the whole prompt, it reuses what it has read; step, rewind. Knows no text."""

import time
from collections.abc import Callable, Sequence

import torch

from engine.experts.policy import Expert, Heat
from engine.experts.run import ExpertRunner
from engine.experts.trace import Recorder
from engine.kv.cache import KvCache
from engine.meter import Link, Meter, Phase, Traffic, merged
from engine.models.layers import Model
from engine.plan.plan import PREFILL_CHUNK
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore


class Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The pass was given up at a layer's edge; the session stands where it stood before the pass."""


class Session:
    """Tokens that the cache holds, and the logits after them. Not thread-safe.

    `dense_bytes` is what each pass reads beside the experts, for the meter. With `rows` the model's embedding is the table of
    the rows that these hold, and tokens are handed to it by their places there.
    """

    def __init__(
        self,
        model: Model,
        kv: KvCache,
        experts: ExpertRunner,
        policy: Heat,
        reader: DiskReader,
        meter: Meter,
        dense_bytes: int,
        rows: RowStore | None = None,
    ) -> None:
        self._model, self._kv, self._experts, self._policy = model, kv, experts, policy
        self._reader, self._meter, self._dense_bytes, self._rows = reader, meter, dense_bytes, rows
        self.tokens: list[int] = []
        self.recorder: Recorder | None = None  # of routing, for `stoker trace record`
        self._request = -1

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
        return self._kv.reachable(common)

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
        self._reader.check_files()
        self._request += 1
        self.rewind(self.reusable(tokens))
        assert len(self.tokens) == self._kv.length, "what is reusable need not be read again"
        logits, records = torch.empty(0), []
        while len(self.tokens) < len(tokens):
            chunk = tokens[len(self.tokens) : len(self.tokens) + PREFILL_CHUNK]
            self._begin(Phase.PREFILL, len(chunk))
            logits = self._forward(chunk, should_stop)
            records.append(self._end())
            self._kv.mark()
            progress(len(self.tokens), records[-1])
        return logits, merged(records)

    def step(self, token: int, should_stop: Callable[[], bool] = lambda: False) -> tuple[torch.Tensor, Traffic]:
        """Append one token; returns the logits [V] after it and the traffic. Raises `Cancelled` and `EngineError`.

        After a `rewind` into the midst of what recurrent layers remember, what they have lost is read again first.
        """
        while lost := self.tokens[self._kv.length :]:
            chunk = lost[:PREFILL_CHUNK]
            self._begin(Phase.PREFILL, len(chunk))
            self._forward(chunk, should_stop, is_known=True)
            self._end()
        if len(self.tokens) % PREFILL_CHUNK == 0:
            self._kv.mark()
        self._begin(Phase.DECODE, 1)
        logits = self._forward([token], should_stop)
        return logits, self._end()

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        self._kv.truncate(length)
        del self.tokens[length:]

    @property
    def num_slots(self) -> int:
        """Experts that RAM holds at present: fewer while other programs need the memory."""
        return self._experts.num_slots

    def heat(self) -> dict[Expert, float]:
        """How much each expert was used of late, for the next start."""
        return self._policy.heat()

    def _begin(self, phase: Phase, tokens: int) -> None:
        self._reader.take_busy_seconds()
        self._meter.begin(phase, tokens)
        self._experts.begin(phase)
        if self.recorder is not None:
            self.recorder.begin(self._request, phase, len(self.tokens))

    def _end(self) -> Traffic:
        self._meter.add(Link.DISK, 0, self._reader.take_busy_seconds())
        if self._reader.notice:  # what the file cache served did not come from the drive
            self._meter.derived.add(Link.DISK)
        return self._meter.end()

    def _embedded(self, tokens: Sequence[int]) -> Sequence[int]:
        if self._rows is None:
            return tokens
        places, nbytes = self._rows.places(tokens)
        self._meter.add(Link.DISK, nbytes, 0.0)
        return places

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], should_stop: Callable[[], bool], *, is_known: bool = False) -> torch.Tensor:
        """Logits [V] after tokens that follow what the cache holds; `is_known` says that the timeline has them already."""
        begun, in_experts = time.perf_counter(), 0.0

        def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            nonlocal in_experts
            if should_stop():
                raise Cancelled
            if self.recorder is not None:
                self.recorder.add(layer, ids.tolist(), weights.tolist())
            entered = time.perf_counter()
            y = self._experts(layer, x, ids, weights)
            in_experts += time.perf_counter() - entered
            return y

        logits = self._model(torch.tensor(self._embedded(tokens)), self._kv, experts)
        self._kv.advance(len(tokens))
        if not is_known:
            self.tokens.extend(tokens)
        kv_bytes = self._kv.length * self._kv.bytes_per_token
        self._meter.add(Link.RAM, self._dense_bytes + kv_bytes, time.perf_counter() - begun - in_experts)
        return logits
