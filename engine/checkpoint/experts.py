"""Which bytes make up each routed expert: the unit that tiers, cache and meter move. Bytes only, no arithmetic on weights."""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How an architecture names its per-expert tensors: a pattern with {layer}, {expert}, {part}; parts in use order."""

    pattern: str  # "model.layers.{layer}.mlp.experts.{expert}.{part}.weight"
    parts: tuple[str, ...]  # gate, up, down

    def regex(self) -> re.Pattern[str]:
        text = re.escape(self.pattern)
        for field, group in (
            ("layer", r"(?P<layer>\d+)"),
            ("expert", r"(?P<expert>\d+)"),
            ("part", f"(?P<part>{'|'.join(self.parts)})"),
        ):
            text = text.replace(re.escape("{" + field + "}"), group)
        return re.compile(text)


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous piece of one file, read with one request."""

    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One tensor of an expert: its bytes start `start` bytes into `runs[run]`."""

    run: int
    start: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertRange:
    """All bytes of one expert: few runs on disk, and its parts within them in the order of `ExpertNames.parts`."""

    runs: tuple[Run, ...]
    parts: tuple[ExpertPart, ...]

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)


@dataclass(frozen=True)
class ExpertMap:
    """`ranges[layer][expert]` for each MoE layer. Every expert of a checkpoint has the same parts, shapes and bytes."""

    ranges: dict[int, tuple[ExpertRange, ...]]

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(self.ranges)

    @property
    def num_experts(self) -> int:
        return len(next(iter(self.ranges.values())))

    @property
    def sample(self) -> ExpertRange:
        """Any one expert, for what all share."""
        return next(iter(self.ranges.values()))[0]

    @property
    def expert_bytes(self) -> int:
        return self.sample.nbytes

    @property
    def nbytes(self) -> int:
        return self.expert_bytes * self.num_experts * len(self.ranges)


def map_experts(checkpoint: Checkpoint, names: ExpertNames) -> ExpertMap:
    """Find every routed expert. Raises `EngineError` where one is absent, incomplete or shaped unlike the others."""
    found: dict[int, dict[int, dict[str, TensorRef]]] = defaultdict(lambda: defaultdict(dict))
    regex = names.regex()
    for name, ref in checkpoint.tensors.items():
        if match := regex.fullmatch(name):
            found[int(match["layer"])][int(match["expert"])][match["part"]] = ref
    if not found:
        raise EngineError(
            "checkpoint.no_experts",
            f"{checkpoint.name} has no tensors named like {names.pattern}.",
            "Its experts are laid out in a way that this version does not read.",
        )
    ranges = {}
    for layer in sorted(found):
        experts = found[layer]
        for expert in range(max(experts) + 1):
            _check_parts(checkpoint, names, layer, expert, experts.get(expert, {}))
        ranges[layer] = tuple(_range([experts[expert][part] for part in names.parts]) for expert in range(len(experts)))
    _check_alike(checkpoint, ranges)
    return ExpertMap(ranges)


def _check_parts(checkpoint: Checkpoint, names: ExpertNames, layer: int, expert: int, parts: dict[str, TensorRef]) -> None:
    for part in names.parts:
        if part not in parts:
            checkpoint.tensor(names.pattern.format(layer=layer, expert=expert, part=part))


def _range(refs: list[TensorRef]) -> ExpertRange:
    """Join parts that touch in the file, so that a whole expert is one read where the file allows it."""
    runs: list[Run] = []
    place: dict[str, tuple[int, int]] = {}
    for ref in sorted(refs, key=lambda ref: (ref.file, ref.offset)):
        last = runs[-1] if runs else None
        if last and last.file == ref.file and last.offset + last.nbytes == ref.offset:
            place[ref.name] = (len(runs) - 1, last.nbytes)
            runs[-1] = Run(last.file, last.offset, last.nbytes + ref.nbytes)
        else:
            place[ref.name] = (len(runs), 0)
            runs.append(Run(ref.file, ref.offset, ref.nbytes))
    parts = tuple(ExpertPart(*place[ref.name], ref.nbytes, ref.dtype, ref.shape) for ref in refs)
    return ExpertRange(tuple(runs), parts)


def _check_alike(checkpoint: Checkpoint, ranges: dict[int, tuple[ExpertRange, ...]]) -> None:
    def shape(item: ExpertRange) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((part.dtype, part.shape) for part in item.parts)

    first_layer = next(iter(ranges))
    expected, count = shape(ranges[first_layer][0]), len(ranges[first_layer])
    for layer, experts in ranges.items():
        if len(experts) != count:
            raise EngineError(
                "checkpoint.uneven_experts",
                f"{checkpoint.name} has {len(experts)} experts in layer {layer} and {count} in layer {first_layer}.",
                "The download is incomplete: get the model again.",
            )
        odd = next((index for index, item in enumerate(experts) if shape(item) != expected), None)
        if odd is not None:
            raise EngineError(
                "checkpoint.uneven_experts",
                f"Expert {odd} of layer {layer} in {checkpoint.name} differs: {shape(experts[odd])}, not {expected}.",
                "Mixed formats are not supported: get another release of this model.",
            )
