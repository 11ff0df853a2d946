"""Recordings like those of a CUDA graph, without a card: what is recorded is repeated without any of the Python around it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.captured import Run
from engine.kernels.reference import Reference

_ATEN = torch.ops.aten
_FORBIDDEN = {
    _ATEN.item.default: "the host waits for a number",
    _ATEN._local_scalar_dense.default: "the host waits for a number",
    _ATEN.is_nonzero.default: "the host waits for a number",
    _ATEN.equal.default: "the host waits for a number",
    _ATEN.resolve_neg.default: "the host waits for a list of numbers",
    _ATEN.nonzero.default: "the host waits for a size",
    _ATEN.masked_select.default: "the host waits for a size",
    _ATEN.repeat_interleave.Tensor: "the host waits for a size",
    _ATEN.lift_fresh.default: "numbers come from the host",
}


class _Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The calls on tensors, of which each has the memory of its results for good."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], object]] = []
        self.is_paused = False

    def __torch_dispatch__(
        self, function: Any, types: object, given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        named = named or {}
        if self.is_paused:
            return function(*given, **named)
        if function is _ATEN.index.Tensor and any(one is not None and one.dtype == torch.bool for one in given[1]):
            raise RuntimeError("operation not permitted when stream is capturing: the host waits for a size")
        if function in _FORBIDDEN:
            raise RuntimeError(f"operation not permitted when stream is capturing: {_FORBIDDEN[function]}")
        results = function(*given, **named)
        own = results if isinstance(results, tuple) else (results,)
        taken = {one.untyped_storage().data_ptr() for one in given if isinstance(one, torch.Tensor)}
        is_new = [isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in taken for one in own]

        def again() -> None:
            anew = function(*given, **named)
            for new, old, one in zip(is_new, own, anew if isinstance(anew, tuple) else (anew,), strict=True):
                if new:
                    old.copy_(one)

        self.calls.append(again)
        return results


class Graphs:
    """A `Record`. What `whole` is asked for meanwhile is one call of a recording: kernels that the tape does not see into."""

    def __init__(self) -> None:
        self.made = self.repeated = 0
        self._tape: _Tape | None = None

    def __call__(self, run: Run) -> Run:
        self.made += 1
        tape = self._tape = _Tape()
        try:
            with tape:
                y = run()
        finally:
            self._tape = None
        y.fill_(torch.nan)  # a card has computed nothing by now

        def again() -> torch.Tensor:
            self.repeated += 1
            for call in tape.calls:
                call()
            return y

        return again

    def launch(self, start: Callable[[], None]) -> None:
        """One whose results have their memory already: while a recording is made it is not done, as on a card."""
        if self._tape is None:
            start()
        else:
            self._tape.calls.append(start)

    def whole(self, compute: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        tape = self._tape
        if tape is None:
            return compute()
        tape.is_paused = True
        try:
            y = compute()
        finally:
            tape.is_paused = False

        def again() -> None:
            anew = compute()
            if y is not None and anew is not None:
                y.copy_(anew)

        tape.calls.append(again)
        return y


class Recordable(Reference):
    """Looks at the slots' numbers on the host, which no recording may; here that is a part of it."""

    def __init__(self, graphs: Graphs) -> None:
        super().__init__()
        self._graphs = graphs

    def moe(self, *arguments: Any, **named: Any) -> torch.Tensor | None:
        return self._graphs.whole(lambda: Reference.moe(self, *arguments, **named))
