"""A decoded token as one graph: all of its calls on the device, recorded once and then started as one.

A layer is some thirty calls of a few microseconds each, which the host needs longer to make than the device to serve. Recorded
calls have their shapes and addresses for good, so tokens share a recording as long as their context is within the same reach.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from engine.experts.on_device import Routed
from engine.kernels.spec import Rotation
from engine.kv.cache import KvCache
from engine.kv.fixed import FixedKv, NotFixed
from engine.models.decoder import Decoder

_log = logging.getLogger(__name__)
_LEAST_REACH, _GROWTH, _STEP = 256, 1.25, 64  # tokens: each reach is so many times the one before, in whole steps
_MOST_KEPT = 4  # recordings
_TOLERANCE = 1e-3  # of the largest logit: sums over more rows round differently


class Alone(Protocol):
    """`Experts` of `engine.models.layers` without the host; see `engine.experts.on_device.OnDevice` for the rest."""

    epoch: int
    routed: Routed

    @property
    def is_on(self) -> bool: ...

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor: ...


Run = Callable[[], torch.Tensor]


class Record(Protocol):
    """Makes of calls on a device a function that repeats them, and returns the same tensor each time."""

    def __call__(self, run: Run) -> Run: ...


class CudaGraphs:
    """A `Record` on one device. Its recordings share their memory, as one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        # Torch itself would take a stream of the current device, which may be another.
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def __call__(self, run: Run) -> Run:
        graph: Any = torch.cuda.CUDAGraph()
        with (
            torch.cuda.stream(self._stream),  # comes back from it too where a recording fails, as torch's own exit does not
            torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
        ):
            y = run()
        self._pool = graph.pool()

        def again() -> torch.Tensor:
            graph.replay()
            return y

        return again


@dataclass(frozen=True, eq=False)
class _Step:
    """A recording, with the tensors that it reads: the stream and the rotation."""

    x: torch.Tensor
    rotation: Rotation
    kv: FixedKv
    run: Run
    routed: Routed

    def aim(self, x: torch.Tensor, rotation: Rotation) -> None:
        self.x.copy_(x)
        for ours, theirs in zip(self.rotation, rotation, strict=True):
            ours.copy_(theirs)


class Captured:
    """Logits of tokens whose experts `on_device` computes. What it cannot record is told by None, and so is what it records
    wrongly: each recording is held against the calls themselves, and the first against the model as it is."""

    def __init__(self, model: Decoder, kv: KvCache, on_device: Alone, record: Record) -> None:
        self._model, self._kv, self._on_device, self._record = model, kv, on_device, record
        self._steps: dict[tuple[int, int], _Step] = {}
        self.is_refused = False

    def __call__(self, token: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor | None:
        """int64 [1] to the logits [V], which stay until the next token; None where the model must be called."""
        if self.is_refused or not self._on_device.is_on:
            return None
        key = self._on_device.epoch, reach_of(self._kv.length + 1, self._kv.capacity)
        step = self._steps.get(key)
        if step is None:
            step = self._made(key, token, places)
            if step is None:
                return None
        step.aim(*self._model.enter(token, self._kv, places))
        step.kv.aim()
        self._on_device.routed = step.routed
        return step.run()

    def _made(self, key: tuple[int, int], token: torch.Tensor, places: torch.Tensor | None) -> _Step | None:
        """Computes the token some times over, which changes nothing: what it keeps and brings is the same each time."""
        for old in list(self._steps)[: max(0, len(self._steps) - _MOST_KEPT + 1)]:
            del self._steps[old]
        try:
            step = self._recorded(key[1], token, places)
        except NotFixed as error:
            _log.info("Tokens are not recorded: a layer asks for %s.", error)
            step = None
        except RuntimeError as error:  # also for want of memory; what is wrong with the device shows again at once
            _log.warning("Tokens cannot be recorded: %s", str(error).partition("\n")[0])
            step = None
        self._on_device.routed = []
        if step is None:
            self.is_refused = True
            self._steps.clear()
        else:
            self._steps[key] = step
        return step

    def _recorded(self, reach: int, token: torch.Tensor, places: torch.Tensor | None) -> _Step:
        model, on_device, kv = self._model, self._on_device, FixedKv(self._kv, reach)
        x, rotation = model.enter(token, self._kv, places)
        own_x, (cosine, sine) = x.clone(), rotation
        own_rotation = cosine.clone(), sine.clone()

        def run() -> torch.Tensor:
            on_device.routed = []
            return model.layers(own_x, own_rotation, cast(KvCache, kv), on_device)  # it is asked for what it has

        expected = run().clone()
        if not self._steps:
            as_it_is = model.layers(x.clone(), rotation, self._kv, on_device)
            if not _is_close(expected, as_it_is):
                raise RuntimeError("with fixed shapes its logits are others")
        again = self._record(run)
        step = _Step(own_x, own_rotation, kv, again, on_device.routed)
        step.aim(x, rotation)
        if not _is_close(again(), expected):
            raise RuntimeError("the recording gives other logits")
        return step


def reach_of(length: int, capacity: int) -> int:
    """Rows that a token is computed with whose context has so many."""
    reach = _LEAST_REACH
    while reach < length:
        reach = -(-int(reach * _GROWTH) // _STEP) * _STEP
    return min(reach, capacity)


def _is_close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= _TOLERANCE * theirs.abs().max())
