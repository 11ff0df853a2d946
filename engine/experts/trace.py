"""Routing traces: which experts each layer chose for each token. Reads, writes and records them; knows no tensors.

The format is that of BigMoeOnEdge's `route_trace v1`: comment lines with the model's geometry, a line of column names, then one
line per chosen expert, those of one token and layer together: `turn,phase,step,layer,slot,expert,weight`. Phase is 0 in
prefill and 1 in decode, step the token's position, slot the rank in the top-k. Further columns are skipped.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

from engine.errors import EngineError
from engine.meter import Phase

_PHASES = {"0": Phase.PREFILL, "1": Phase.DECODE}
_COLUMNS = ("turn", "phase", "step", "layer", "slot", "expert", "weight")
_LONGEST_NUMBER = 9  # digits; more is no count of anything here
_MOST_EXPERTS = 2**16
_NEXT_STEP = "Record it again: stoker trace record"


@dataclass(frozen=True)
class Geometry:
    """`expert_bytes` is by layer, for the layers that have experts."""

    model: str
    num_experts: int
    top_k: int
    expert_bytes: Mapping[int, int]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(self.expert_bytes)


@dataclass(frozen=True, slots=True)
class Routing:
    """What one token chose in one layer, best first."""

    request: int
    phase: Phase
    step: int
    layer: int
    experts: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Trace:
    geometry: Geometry
    routings: tuple[Routing, ...]  # as they were recorded: prefill passes go layer by layer, decode token by token

    def decoded(self) -> tuple[Routing, ...]:
        return tuple(routing for routing in self.routings if routing.phase is Phase.DECODE)


def read_trace(path: Path) -> Trace:
    """Raises `EngineError` with the number of the line that is wrong."""
    try:
        with path.open(encoding="utf-8") as file:
            return _Reader(path.name, file).read()
    except OSError as error:
        text = f"{path} cannot be read: {error.strerror or error}."
        raise EngineError("trace.unreadable", text, "Give the path of a routing trace.") from error
    except UnicodeDecodeError as error:
        raise EngineError("trace.format", f"{path.name} is not a text file.", "Give the path of a routing trace.") from error


class _Reader:
    def __init__(self, name: str, file: TextIO) -> None:
        self._name, self._lines, self._number = name, enumerate(file, 1), 0

    def read(self) -> Trace:
        geometry, columns = self._head()
        routings = tuple(self._routings(geometry, columns))
        if not routings:
            self._fail("there is no routing in it")
        return Trace(geometry, routings)

    def _next(self) -> str:
        """The next line without its end; empty at the end of the file."""
        for number, line in self._lines:
            self._number = number
            if stripped := line.strip():
                return stripped
        return ""

    def _head(self) -> tuple[Geometry, dict[str, int]]:
        """The geometry, and the place of each column."""
        model: dict[str, str] = {}
        expert_bytes: dict[int, int] = {}
        line = self._next()
        while line.startswith("#"):
            values = dict(re.findall(r"(\w+)=(\S+)", line))
            if "layer" in values:
                expert_bytes[self._count(values["layer"], "layer")] = self._count(
                    values.get("expert_bytes", ""), "expert_bytes"
                )
            else:
                model |= values
            line = self._next()
        columns = {name: place for place, name in enumerate(line.split(","))}
        if absent := [name for name in _COLUMNS if name not in columns]:
            self._fail(f"the columns {', '.join(absent)} are not there" if line else "the columns' names are not there")
        num_experts = self._count(model.get("n_expert", ""), "n_expert")
        top_k = self._count(model.get("n_expert_used", ""), "n_expert_used")
        if not 0 < top_k <= num_experts <= _MOST_EXPERTS:
            self._fail(f"{top_k} of {num_experts} experts per token is no model")
        if not expert_bytes:
            self._fail("no line above says expert_bytes of any layer")
        return Geometry(model.get("model", ""), num_experts, top_k, expert_bytes), columns

    def _routings(self, geometry: Geometry, columns: Mapping[str, int]) -> Iterator[Routing]:
        places = [columns[name] for name in _COLUMNS]
        while line := self._next():
            head, experts, weights = None, [], []
            for rank in range(geometry.top_k):
                if rank:
                    line = self._next()
                cells = line.split(",")
                if len(cells) != len(columns):
                    what = (
                        f"there are {len(cells)} columns of {len(columns)}"
                        if line
                        else f"only {rank} of top-{geometry.top_k} are there"
                    )
                    self._fail(what)
                turn, phase, step, layer, slot, expert, weight = (cells[place] for place in places)
                head = head or (turn, phase, step, layer)
                if (turn, phase, step, layer) != head or slot != str(rank):
                    self._fail(f"this should be rank {rank} of step {head[2]}, layer {head[3]}")
                experts.append(self._expert(expert, geometry))
                weights.append(self._weight(weight))
            assert head is not None, "top-k is positive"
            if len(set(experts)) != len(experts):
                self._fail("an expert is chosen twice for one token")
            yield self._routing(head, geometry, tuple(experts), tuple(weights))

    def _routing(
        self, head: tuple[str, str, str, str], geometry: Geometry, experts: tuple[int, ...], weights: tuple[float, ...]
    ) -> Routing:
        turn, phase, step, layer = head
        if phase not in _PHASES:
            self._fail(f"phase {phase} is neither 0 (prefill) nor 1 (decode)")
        number = self._count(layer, "layer")
        if number not in geometry.expert_bytes:
            self._fail(f"layer {number} is not among the {len(geometry.expert_bytes)} layers above")
        return Routing(self._count(turn, "turn"), _PHASES[phase], self._count(step, "step"), number, experts, weights)

    def _expert(self, text: str, geometry: Geometry) -> int:
        expert = self._count(text, "expert")
        if expert >= geometry.num_experts:
            self._fail(f"expert {expert} is not among {geometry.num_experts}")
        return expert

    def _weight(self, text: str) -> float:
        try:
            weight = float(text)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight):
            self._fail(f"the weight {text!r} is not a number")
        return weight

    def _count(self, text: str, what: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER):
            self._fail(f"{what} is {text[:20]!r}, not a count" if text else f"{what} is not given")
        return int(text)

    def _fail(self, what: str) -> NoReturn:
        where = f"line {self._number}" if self._number else "an empty file"
        raise EngineError("trace.format", f"{self._name}, {where}: {what}.", _NEXT_STEP)


class Recorder:
    """Writes a trace while a model runs: `begin` before each pass, `add` from each of its layers. The file is the caller's."""

    def __init__(self, file: TextIO, geometry: Geometry) -> None:
        self._file, self._top_k = file, geometry.top_k
        self._request, self._phase, self._step = 0, Phase.DECODE, 0
        model = re.sub(r"\s", "_", geometry.model)
        file.write(
            f"# route_trace v1\n# model={model} n_layer={len(geometry.layers)} "
            f"n_expert={geometry.num_experts} n_expert_used={geometry.top_k}\n"
        )
        file.writelines(f"# layer={layer} expert_bytes={count}\n" for layer, count in geometry.expert_bytes.items())
        file.write(",".join(_COLUMNS) + "\n")

    def begin(self, request: int, phase: Phase, step: int) -> None:
        """A pass follows whose first token stands at position `step`."""
        self._request, self._phase, self._step = request, phase, step

    def add(self, layer: int, ids: Sequence[Sequence[int]], weights: Sequence[Sequence[float]]) -> None:
        """What the pass's tokens chose in a layer, best first: ids and weights [T][k]."""
        phase = int(self._phase is Phase.DECODE)
        for token, (experts, shares) in enumerate(zip(ids, weights, strict=True)):
            assert len(experts) == self._top_k, f"{len(experts)} experts for a token, {self._top_k} expected"
            head = f"{self._request},{phase},{self._step + token},{layer}"
            self._file.writelines(
                f"{head},{rank},{expert},{share:.6g}\n"
                for rank, (expert, share) in enumerate(zip(experts, shares, strict=True))
            )
