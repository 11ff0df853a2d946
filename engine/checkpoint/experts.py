"""Which bytes make up each routed expert: the unit that tiers, cache and meter move. Bytes only, no arithmetic on weights.

Published checkpoints store experts as tensors of their own (`experts.7.up_proj.weight`, with scales and the like beside it)
or fused into one tensor per layer, whose first dimension is the expert (`experts.gate_up_proj_blocks`). Both become ranges.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError

_UNUSED = frozenset({".input_scale", ".input_global_scale"})  # of activations, which Stoker does not quantise so
_SMALL = 128  # a run below 1/128 of its expert's largest part stays resident: reading it costs more time than keeping it
_MOST_EXPERTS = 1 << 16  # of a layer; no published model comes near


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """How an architecture names the matrices of its experts, {layer} standing for the layer's number."""

    prefix: str  # "model.layers.{layer}.mlp.experts"
    separate: tuple[str, ...] | None = None  # gate, up, down of experts with tensors of their own; up, down without a gate
    fused: tuple[str, str] | None = None  # gate and up together, down; experts stacked in the first dimension
    is_transposed: bool = False  # fused matrices of a plain type are stored [in, out]
    is_interleaved: bool = False  # rows of a fused gate and up alternate

    def find(self, name: str) -> tuple[int, int | None, str, str] | None:
        """Layer, expert (None where fused), matrix and suffix of a tensor name, or None if it is no expert's."""
        if self.separate and (match := _separate(self.prefix, self.separate).fullmatch(name)):
            return int(match[1]), int(match[2]), match[3], match[4]
        if self.fused and (match := _fused(self.prefix, self.fused).fullmatch(name)):
            return int(match[1]), None, match[2], match[3] or ".weight"
        return None


@cache
def _separate(prefix: str, matrices: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{_of_layer(prefix)}\.(\d+)\.({_any(matrices)})(\.\w+)")


@cache
def _fused(prefix: str, matrices: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"{_of_layer(prefix)}\.({_any(matrices)})([._]\w+)?")


def _of_layer(prefix: str) -> str:
    return re.escape(prefix).replace(re.escape("{layer}"), r"(\d+)")


def _any(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous piece of one file, read with one request."""

    file: Path
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One tensor of an expert: `suffix` of `matrix` (".weight" of "up_proj"), `start` bytes into `runs[run]`."""

    matrix: str
    suffix: str
    ref: TensorRef
    run: int
    start: int


@dataclass(frozen=True, slots=True)
class ExpertRange:
    """All bytes of one expert: few runs on disk with its parts in them, and the small parts that stay in RAM for good."""

    runs: tuple[Run, ...]
    parts: tuple[ExpertPart, ...]
    small: tuple[tuple[str, str, TensorRef], ...] = ()  # matrix, suffix and where it lies

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def matrices(self) -> dict[str, dict[str, TensorRef]]:
        """All tensors by matrix and suffix, small ones included."""
        found: dict[str, dict[str, TensorRef]] = defaultdict(dict)
        for part in self.parts:
            found[part.matrix][part.suffix] = part.ref
        for matrix, suffix, ref in self.small:
            found[matrix][suffix] = ref
        return dict(found)


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
        """Of the largest, should files be cut so that some keep a small part resident and others do not."""
        return max(item.nbytes for experts in self.ranges.values() for item in experts)

    def small_refs(self) -> list[TensorRef]:
        return [ref for experts in self.ranges.values() for expert in experts for _, _, ref in expert.small]


Parts = dict[tuple[str, str], TensorRef]  # by matrix and suffix


def map_experts(checkpoint: Checkpoint, names: ExpertNames) -> ExpertMap:
    """Find every routed expert. Raises `EngineError` where one is absent, incomplete or shaped unlike the others."""
    found: dict[int, dict[int, Parts]] = defaultdict(lambda: defaultdict(dict))
    for name, ref in checkpoint.tensors.items():
        place = names.find(name)
        if place is None or place[3] in _UNUSED:
            continue
        layer, expert, matrix, suffix = place
        slices = _unstack(ref) if expert is None else [(expert, ref)]
        for index, part in slices:
            found[layer][index][matrix, suffix] = part
    if not found:
        raise EngineError(
            "checkpoint.no_experts",
            f"{checkpoint.name} has no tensors named like {names.prefix}.",
            "Its experts are laid out in a way that this version does not read.",
        )
    _check_alike(checkpoint, found)
    some = next(iter(next(iter(found.values())).values()))
    if not any(ref.nbytes for ref in some.values()):
        raise _without_experts(next(iter(some.values())))
    return ExpertMap({layer: tuple(_range(found[layer][expert]) for expert in sorted(found[layer])) for layer in sorted(found)})


def _unstack(ref: TensorRef) -> list[tuple[int, TensorRef]]:
    """The experts of a fused tensor [E, ...] as tensors of their own. Raises `EngineError` where there can be none."""
    count = ref.shape[0] if ref.shape else 0
    if not ref.nbytes or not 0 < count <= _MOST_EXPERTS:  # what has no bytes may claim to be 2**62 experts
        raise _without_experts(ref)
    size = ref.nbytes // count
    return [
        (index, replace(ref, name=f"{ref.name}[{index}]", offset=ref.offset + index * size, nbytes=size, shape=ref.shape[1:]))
        for index in range(count)
    ]


def _without_experts(ref: TensorRef) -> EngineError:
    return EngineError(
        "checkpoint.uneven_experts",
        f"Tensor {ref.name} in {ref.file.name} is {list(ref.shape)}, which are no experts.",
        "The file is damaged or of another model: get it again.",
    )


def _range(parts: Parts) -> ExpertRange:
    """Join parts that touch in the file, so that a whole expert is one read where the file allows it."""
    largest = max(ref.nbytes for ref in parts.values())
    ordered = sorted(parts.items(), key=lambda item: (item[1].file, item[1].offset))
    runs: list[list[tuple[tuple[str, str], TensorRef]]] = []
    for item in ordered:
        last = runs[-1][-1][1] if runs else None
        if last and last.file == item[1].file and last.offset + last.nbytes == item[1].offset:
            runs[-1].append(item)
        else:
            runs.append([item])
    kept: list[Run] = []
    placed: list[ExpertPart] = []
    small: list[tuple[str, str, TensorRef]] = []
    for run in runs:
        first = run[0][1]
        nbytes = run[-1][1].offset + run[-1][1].nbytes - first.offset
        if nbytes * _SMALL <= largest:
            small.extend((matrix, suffix, ref) for (matrix, suffix), ref in run)
            continue
        placed.extend(ExpertPart(matrix, suffix, ref, len(kept), ref.offset - first.offset) for (matrix, suffix), ref in run)
        kept.append(Run(first.file, first.offset, nbytes))
    return ExpertRange(tuple(kept), tuple(placed), tuple(small))


def _check_alike(checkpoint: Checkpoint, found: dict[int, dict[int, Parts]]) -> None:
    """Most experts tell what an expert is: the odd one out is named, whichever it is."""
    count = Counter(len(experts) for experts in found.values()).most_common(1)[0][0]
    signatures = Counter(_signature(parts) for experts in found.values() for parts in experts.values())
    expected = dict(signatures.most_common(1)[0][0])
    for layer, experts in sorted(found.items()):
        if sorted(experts) != list(range(count)):
            raise EngineError(
                "checkpoint.uneven_experts",
                f"{checkpoint.name} has {len(experts)} experts in layer {layer}, where {count} are expected.",
                "The download is incomplete: get the model again.",
            )
        for expert, parts in experts.items():
            _check_parts(f"Expert {expert} of layer {layer} in {checkpoint.name}", parts, expected)


Signature = tuple[tuple[tuple[str, str], tuple[str, tuple[int, ...]]], ...]  # (matrix, suffix), (type, shape)


def _signature(parts: Parts) -> Signature:
    return tuple(sorted((name, (ref.dtype, ref.shape)) for name, ref in parts.items()))


def _check_parts(what: str, parts: Parts, expected: dict[tuple[str, str], tuple[str, tuple[int, ...]]]) -> None:
    for name, ref in parts.items():
        dtype, shape = expected.get(name, ("", ()))
        if dtype and (ref.dtype, ref.shape) != (dtype, shape):
            raise EngineError(
                "checkpoint.uneven_experts",
                f"{what} has {ref.name} in {ref.file.name} as {ref.dtype}{list(ref.shape)}, the others {dtype}{list(shape)}.",
                "Mixed formats are not supported: get another release of this model.",
            )
    if missing := expected.keys() - parts.keys():
        hint = "The download is incomplete: get the model again."
        raise EngineError("checkpoint.missing_tensor", f"{what} has no {''.join(min(missing))}.", hint)
    if extra := parts.keys() - expected.keys():
        ref = parts[min(extra)]
        raise EngineError(
            "checkpoint.uneven_experts",
            f"{what} has {ref.name} in {ref.file.name}, which the others do not have.",
            "Mixed formats are not supported: get another release of this model.",
        )
