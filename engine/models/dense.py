"""The tensors that every token needs: found in the headers, checked against what the model declares, bound once loaded."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch

from engine.checkpoint.experts import ExpertNames
from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.kernels.weights import Weight
from engine.models.decoder import Plain, Shapes, StoredLessOne, Table
from engine.models.layers import Weights
from engine.quant.layout import Layout, unusable
from engine.quant.registry import by_stem, quantization_of, recognise

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_INTEGERS = {"I64": torch.int64, "I32": torch.int32}
_EMBEDDING = "model.embed_tokens"
_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_DERIVED = re.compile(r".*\b(inv_freq|masked_bias|\w+_scale)")  # what follows from config.json; scales of a cache or of inputs


@dataclass(frozen=True)
class Dense:
    """Matrices by stem with their parts by suffix, and all else, vectors, a convolution's taps and tables, by name."""

    layouts: dict[str, tuple[Layout, dict[str, TensorRef]]]
    vectors: dict[str, TensorRef]
    less_one: frozenset[str]  # of the vectors
    tables: dict[str, TensorRef] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)  # what a table's numbers must be below

    @property
    def refs(self) -> list[TensorRef]:
        """Every tensor once, whatever shares it."""
        refs = [parts[suffix] for layout, parts in self.layouts.values() for suffix in layout.parts]
        return list({ref.name: ref for ref in (*refs, *self.vectors.values(), *self.tables.values())}.values())

    def bind(
        self, tensors: dict[str, torch.Tensor], check: Callable[[Weight, str], None], shortened: Collection[str] = ()
    ) -> Weights:
        """The model's weights over loaded bytes, uint8 by tensor name; of the `shortened` ones only some rows are there.

        `check` sees every whole matrix. Raises `EngineError` for unusable contents.
        """
        matrices: dict[str, Weight] = {}
        for stem, (layout, parts) in self.layouts.items():
            held = {suffix: tensors[parts[suffix].name] for suffix in layout.parts}
            for suffix, data in held.items():
                layout.check(suffix, data, parts[suffix])
            matrices[stem] = layout.bind(held)
            if (name := f"{stem}{layout.data}") not in shortened:
                check(matrices[stem], name)
        vectors = {name: tensors[name].view(_FLOATS[ref.dtype]).float() for name, ref in self.vectors.items()}
        vectors |= {name: vectors[name] + 1 for name in self.less_one}
        return Weights(matrices, vectors, tables={name: self._table(name, tensors) for name in self.tables})

    def _table(self, name: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        ref = self.tables[name]
        table = tensors[name].view(_INTEGERS[ref.dtype]).view(ref.shape)
        low, high = map(int, table.aminmax())
        if low < 0 or high >= self.limits[name]:
            reason = f"it has numbers from {low} to {high}, where 0 to {self.limits[name] - 1} belong"
            raise unusable(ref, "a table", reason)
        return table


def find_dense(checkpoint: Checkpoint, shapes: Shapes) -> Dense:
    """Raises `EngineError` naming the first tensor that is missing, shaped otherwise or in an unknown format."""
    stems = by_stem({name: ref for name, ref in checkpoint.tensors.items() if ".experts." not in name})
    quantization = quantization_of(checkpoint.config)
    layouts: dict[str, tuple[Layout, dict[str, TensorRef]]] = {}
    vectors: dict[str, TensorRef] = {}
    tables: dict[str, TensorRef] = {}
    for name, shape in shapes.items():
        if isinstance(shape, Table):
            tables[name] = checkpoint.tensor(name)
            _check_shape(name, tables[name].shape, shape)
            _check_dtype(name, tables[name].dtype, _INTEGERS)
            continue
        if len(shape) != 2 or isinstance(shape, Plain):
            vectors[name] = checkpoint.tensor(name)
            _check_shape(name, vectors[name].shape, shape)
            _check_dtype(name, vectors[name].dtype, _FLOATS)
            continue
        if name not in stems:
            raise missing(checkpoint, f"{name}.weight")
        layout = recognise(name, stems[name], quantization)
        _check_shape(name, (layout.rows, layout.cols), shape)
        layouts[name] = layout, stems[name]
    _check_dtype(_EMBEDDING, checkpoint.tensor(f"{_EMBEDDING}.weight").dtype, _FLOATS)
    less_one = frozenset(name for name, shape in shapes.items() if isinstance(shape, StoredLessOne))
    limits = {name: shape.limit for name, shape in shapes.items() if isinstance(shape, Table)}
    return Dense(layouts, vectors, less_one, tables, limits)


def check_surplus(checkpoint: Checkpoint, dense: Dense, experts: ExpertNames, num_layers: int) -> None:
    """Raises `EngineError` naming a tensor of the model's own layers that nothing would compute with.

    A bias of a matrix is computed with whether it is listed or not: GPTQ releases have zeros there.
    """
    known = {ref.name for _, parts in dense.layouts.values() for ref in parts.values()}
    known |= dense.vectors.keys() | dense.tables.keys()
    for name, ref in checkpoint.tensors.items():
        match = _OF_LAYER.fullmatch(name)
        if match is None or int(match[1]) >= num_layers or name in known or experts.find(name) or _DERIVED.fullmatch(match[2]):
            continue
        raise EngineError(
            "checkpoint.surplus_tensor",
            f"{ref.file.name} of {checkpoint.name} holds {name}, which a model as its config.json describes it does not have.",
            "config.json and weights are of different models: get both again.",
        )


def missing(checkpoint: Checkpoint, name: str) -> EngineError:
    return EngineError(
        "checkpoint.missing_tensor",
        f"{checkpoint.name} has no tensor {name}.",
        "The download is incomplete or of another architecture.",
    )


def _check_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found != wanted:
        raise EngineError(
            "checkpoint.shape",
            f"Tensor {name} is {list(found)}, where config.json asks for {list(wanted)}.",
            "config.json and weights are of different models: get both again.",
        )


def _check_dtype(name: str, dtype: str, known: Collection[str]) -> None:
    if dtype not in known:
        raise EngineError(
            "checkpoint.dtype",
            f"Tensor {name} is {dtype}, where a plain type belongs.",
            f"Stoker computes {', '.join(known)}.",
        )
