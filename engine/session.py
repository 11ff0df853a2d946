"""One mutable timeline of tokens: hand over the whole prompt, it reuses what it has read; step, rewind. Knows no text."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.captured import Captured
from engine.errors import EngineError
from engine.experts.policy import Expert
from engine.experts.run import ExpertRunner
from engine.experts.trace import Recorder
from engine.kv.cache import KvCache
from engine.meter import Link, Meter, Phase, Traffic, merged
from engine.models.layers import Model
from engine.plan.plan import PREFILL_CHUNK
from engine.tiers.copy import DeviceLost
from engine.tiers.disk import DiskReader
from engine.tiers.rows import RowStore

_GIVEN_BACK = 0.25  # of a device's slots, once its memory is full


class Cancelled(Exception):  # noqa: N818 - an outcome, not an error
    """The pass was given up at a layer's edge; the session stands where it stood before the pass."""


@dataclass(eq=False)
class Parts:
    """What a session runs on. `dense_bytes` is what each pass reads beside the experts, for the meter.

    With `rows` the model's embedding is the table of the rows that these hold, and it is told the tokens' places there too.
    `dense_link` is where the dense weights lie: RAM or VRAM. `chunk` tokens of a prompt are read at once. `announce` is told
    the tokens of each pass before it. `captured` is for tokens whose experts are left to a device.
    """

    model: Model
    kv: KvCache
    experts: ExpertRunner
    heat: Callable[[], dict[Expert, float]]
    meter: Meter
    dense_bytes: int = 0
    rows: RowStore | None = None
    dense_link: Link = Link.RAM
    chunk: int = PREFILL_CHUNK
    announce: Callable[[Sequence[int]], None] = lambda _: None
    captured: Captured | None = None


FallBack = Callable[[str], Parts]
"""Parts that need no device, given what became of the device. Raises `EngineError`."""


class Session:
    """Tokens that the cache holds, and the logits after them. Not thread-safe.

    Where a device is lost it goes on with the parts that `fall_back` gives, and reads its tokens again. While there are none
    to be had every request is told so.
    """

    def __init__(self, parts: Parts, reader: DiskReader, fall_back: FallBack | None = None) -> None:
        self._living: Parts | None = parts
        self._reader, self._fall_back = reader, fall_back
        self._lost = ""  # what became of the device
        self.capacity = parts.kv.capacity
        self.tokens: list[int] = []
        self.recorder: Recorder | None = None  # of routing, for `stoker trace record`
        self._request = -1

    @property
    def _parts(self) -> Parts:
        """Raises `EngineError` where a device took them with it and no others can be had yet."""
        if self._living is None:
            assert self._fall_back is not None, "it has been asked"
            gc.collect()  # those that were lost refer to one another in circles, and there is no room for both
            self._living = self._fall_back(self._lost)
            self._fall_back = None
        return self._living

    def reusable(self, tokens: Sequence[int]) -> int:
        """How many leading tokens need not be read again; at least the last one always is, for its logits."""
        common = 0
        for ours, theirs in zip(self.tokens, tokens[:-1], strict=False):
            if ours != theirs:
                break
            common += 1
        return 0 if self._living is None else self._living.kv.reachable(common)

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
        while True:
            try:
                return self._sync(tokens, should_stop, progress)
            except DeviceLost as lost:
                self._go_on_without(lost)

    def step(self, token: int, should_stop: Callable[[], bool] = lambda: False) -> tuple[torch.Tensor, Traffic]:
        """Append one token; returns the logits [V] after it and the traffic. Raises `Cancelled` and `EngineError`.

        What the cache has lost is read again first: recurrent layers after a `rewind`, all of them with a lost device.
        """
        while True:
            try:
                return self._step(token, should_stop)
            except DeviceLost as lost:
                self._go_on_without(lost)

    def _sync(
        self, tokens: Sequence[int], should_stop: Callable[[], bool], progress: Callable[[int, Traffic], None]
    ) -> tuple[torch.Tensor, Traffic]:
        self.rewind(self.reusable(tokens))
        assert len(self.tokens) == self._parts.kv.length, "what is reusable need not be read again"
        logits, records = torch.empty(0), []
        while len(self.tokens) < len(tokens):
            chunk = tokens[len(self.tokens) : len(self.tokens) + self._parts.chunk]
            logits, traffic = self._pass(Phase.PREFILL, chunk, should_stop)
            records.append(traffic)
            self._parts.kv.mark()
            progress(len(self.tokens), traffic)
        return logits, merged(records)

    def _step(self, token: int, should_stop: Callable[[], bool]) -> tuple[torch.Tensor, Traffic]:
        while lost := self.tokens[self._parts.kv.length :]:
            self._pass(Phase.PREFILL, lost[: self._parts.chunk], should_stop, is_known=True)
        if len(self.tokens) % self._parts.chunk == 0:
            self._parts.kv.mark()
        return self._pass(Phase.DECODE, [token], should_stop)

    def _go_on_without(self, lost: DeviceLost) -> None:
        """Everything that the device held is gone; the tokens are not."""
        if self._fall_back is None:
            raise EngineError("device.lost", f"The graphics device stopped: {lost}.", "Load the model again.") from lost
        self._living, self._lost = None, str(lost)  # their memory is needed

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        self._parts.kv.truncate(length)
        del self.tokens[length:]

    @property
    def num_slots(self) -> int:
        """Experts that RAM holds at present: fewer while other programs need the memory."""
        return self._parts.experts.num_slots

    def heat(self) -> dict[Expert, float]:
        """How much each expert was used of late, for the next start."""
        return {} if self._living is None else self._living.heat()

    def misses(self) -> Any:
        """What was learnt of the ways to serve a miss, for the next start; None where there is one way alone."""
        return None if self._living is None else self._living.experts.misses()

    @property
    def notice(self) -> str:
        """A sentence on a part of the memory that helps nobody; empty when all is well."""
        return f"The graphics device stopped: {self._lost}." if self._living is None else self._living.experts.notice

    def _pass(
        self, phase: Phase, tokens: Sequence[int], should_stop: Callable[[], bool], *, is_known: bool = False
    ) -> tuple[torch.Tensor, Traffic]:
        """Logits [V] after tokens that follow what the cache holds, and what that moved; `is_known` says that the timeline has
        them already. A device whose memory is full gives slots back, and the pass is tried once more."""
        try:
            try:
                return self._attempt(phase, tokens, should_stop, is_known=is_known)
            except torch.OutOfMemoryError:
                if not self._parts.experts.shrink(_GIVEN_BACK):
                    raise
            return self._attempt(phase, tokens, should_stop, is_known=is_known)
        except torch.OutOfMemoryError as error:
            raise DeviceLost("its memory is full") from error
        except RuntimeError as error:
            if self._parts.dense_link is not Link.VRAM:
                raise
            raise DeviceLost(str(error).partition("\n")[0]) from error  # torch has no one type for it

    def _attempt(
        self, phase: Phase, tokens: Sequence[int], should_stop: Callable[[], bool], *, is_known: bool
    ) -> tuple[torch.Tensor, Traffic]:
        parts, meter = self._parts, self._parts.meter
        self._reader.take_busy_seconds()
        meter.begin(phase, len(tokens))
        parts.experts.begin(phase)
        if self.recorder is not None:
            self.recorder.begin(self._request, phase, len(self.tokens))
        logits = self._forward(tokens, should_stop)
        parts.kv.advance(len(tokens))
        if not is_known:
            self.tokens.extend(tokens)
        parts.experts.end()
        meter.add(Link.DISK, 0, self._reader.take_busy_seconds())
        if self._reader.notice:  # what the file cache served did not come from the drive
            meter.derived.add(Link.DISK)
        return logits, meter.end()

    def _recorded(
        self, tokens: torch.Tensor, places: torch.Tensor | None, should_stop: Callable[[], bool]
    ) -> torch.Tensor | None:
        """Logits of a token that is one recording; None where somebody needs to hear of its layers, or it is none."""
        captured = self._parts.captured
        if captured is None or self.recorder is not None or len(tokens) > 1:
            return None
        if should_stop():
            raise Cancelled
        return captured(tokens, places)

    def _places(self, tokens: Sequence[int]) -> torch.Tensor | None:
        """Of their embeddings, where those are on disk."""
        rows = self._parts.rows
        if rows is None:
            return None
        places, nbytes = rows.places(tokens)
        self._parts.meter.add(Link.DISK, nbytes, 0.0)
        return torch.tensor(places)

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], should_stop: Callable[[], bool]) -> torch.Tensor:
        """Logits [V], in the host's memory."""
        parts = self._parts
        begun, in_experts = time.perf_counter(), 0.0

        def experts(layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            nonlocal in_experts
            if should_stop():
                raise Cancelled
            if self.recorder is not None:
                self.recorder.add(layer, ids.tolist(), weights.tolist())
            entered = time.perf_counter()
            y = parts.experts(layer, x, ids, weights)
            in_experts += time.perf_counter() - entered
            return y

        parts.announce(tokens)
        given, places = torch.tensor(tokens), self._places(tokens)
        logits = self._recorded(given, places, should_stop)
        logits = (parts.model(given, parts.kv, experts, places) if logits is None else logits).cpu()
        read_bytes = parts.dense_bytes + parts.kv.read_bytes(len(tokens))
        parts.meter.add(parts.dense_link, read_bytes, time.perf_counter() - begun - in_experts)
        return logits
