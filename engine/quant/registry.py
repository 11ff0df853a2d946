"""Which format a matrix has, from its tensors' names, types and shapes alone: never from the model's name."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.quant import awq, fp8, gptq, int4, mxfp4, nvfp4, plain
from engine.quant.layout import Layout, Parts


class QuantFormat(Protocol):
    """One file of this package."""

    def recognises(self, parts: Parts) -> bool:
        """Whether these parts are this format's; they may still be damaged."""

    def describe(self, stem: str, parts: Parts) -> Layout:
        """The matrix, its parts checked. Raises `EngineError` that names the tensor."""


FORMATS: dict[str, QuantFormat] = {
    "MXFP4": mxfp4, "NVFP4": nvfp4, "INT4": int4, "AWQ": awq, "GPTQ": gptq, "FP8": fp8, "16/32-bit": plain,
}  # fmt: skip
SUFFIXES = (
    ".weight", ".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".scale", ".bias",
    ".weight_packed", ".weight_shape", ".weight_global_scale", ".weight_zero_point", ".input_scale", ".input_global_scale",
    ".qweight", ".qzeros", ".scales", ".g_idx", "_blocks", "_scales", "_bias",
)  # fmt: skip
_LONGEST_FIRST = sorted(SUFFIXES, key=len, reverse=True)


def by_stem(tensors: Mapping[str, TensorRef]) -> dict[str, dict[str, TensorRef]]:
    """Tensors grouped into matrices: "model.layers.0.mlp.up_proj" to its parts by suffix."""
    found: dict[str, dict[str, TensorRef]] = defaultdict(dict)
    for name, ref in tensors.items():
        suffix = next((suffix for suffix in _LONGEST_FIRST if name.endswith(suffix)), None)
        if suffix is not None:
            found[name.removesuffix(suffix)][suffix] = ref
    return dict(found)


def recognise(stem: str, parts: Parts) -> tuple[str, Layout]:
    """The format's name and the matrix's layout. Raises `EngineError` for none of them or a damaged one."""
    for name, entry in FORMATS.items():
        if entry.recognises(parts):
            return name, entry.describe(stem, parts)
    held = ", ".join(f"{stem}{suffix} {ref.dtype}{list(ref.shape)}" for suffix, ref in sorted(parts.items()))
    raise EngineError(
        "checkpoint.format", f"The weights {held} are in a format that is not supported.", "Get another release of this model."
    )


def require_one_format(layouts: Iterable[tuple[str, Layout]]) -> str:
    """The format that all have. Raises `EngineError`, naming two that differ: the experts of a layer must be alike."""
    first: tuple[str, Layout] | None = None
    for name, layout in layouts:
        if first is None:
            first = name, layout
        elif name != first[0]:
            raise EngineError(
                "checkpoint.mixed_formats",
                f"{first[1].stem} is {first[0]} and {layout.stem} is {name}: a layer's experts must share one format.",
                "Get another release of this model.",
            )
    assert first is not None, "a layer has experts"
    return first[0]
