"""Which format a matrix has, from its tensors' names, types and shapes: never from the model's name."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.quant import awq, fp8, gptq, int4, mxfp4, nvfp4, plain, transposed
from engine.quant.layout import DamagedError, Layout, Parts, unusable


class QuantFormat(Protocol):
    """One file of this package."""

    def recognises(self, parts: Parts) -> bool:
        """Whether these parts are this format's; they may still be damaged."""

    def describe(self, stem: str, parts: Parts) -> Layout:
        """The matrix, its parts checked. Raises `DamagedError`."""


FORMATS: dict[str, QuantFormat] = {
    "MXFP4": mxfp4, "NVFP4": nvfp4, "INT4": int4, "AWQ": awq, "GPTQ": gptq, "FP8": fp8, "16/32-bit": plain,
}  # fmt: skip
BY_COLUMNS: dict[str, QuantFormat] = FORMATS | {"16/32-bit": transposed}
SUFFIXES = (
    ".weight", ".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".scale", ".bias",
    ".weight_packed", ".weight_shape", ".weight_global_scale", ".weight_zero_point", ".weight_g_idx",
    ".input_scale", ".input_global_scale", ".qweight", ".qzeros", ".scales", ".g_idx", "_blocks", "_scales", "_bias",
)  # fmt: skip
_OF_ACTIVATIONS = {".input_scale", ".input_global_scale"}  # unused: the kernels quantise activations by themselves, if at all
_LONGEST_FIRST = sorted(SUFFIXES, key=len, reverse=True)


def by_stem(tensors: Mapping[str, TensorRef]) -> dict[str, dict[str, TensorRef]]:
    """Tensors grouped into matrices: "model.layers.0.mlp.up_proj" to its parts by suffix."""
    found: dict[str, dict[str, TensorRef]] = defaultdict(dict)
    for name, ref in tensors.items():
        suffix = next((suffix for suffix in _LONGEST_FIRST if name.endswith(suffix)), None)
        if suffix is not None:
            found[name.removesuffix(suffix)][suffix] = ref
    return dict(found)


def quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json's `quantization_config`; empty where there is none."""
    found = config.get("quantization_config")
    return found if isinstance(found, dict) else {}


def recognise(stem: str, parts: Parts, quantization: Mapping[str, Any], *, is_transposed: bool = False) -> Layout:
    """The matrix's layout; `quantization` is config.json's, which decides only what headers leave open.

    `is_transposed` says that this matrix is stored [in, out] if it is plain, which a square one does not show.
    Raises `EngineError` for an unknown format, and one that names tensor, file and format for a damaged matrix.
    """
    for name, entry in (BY_COLUMNS if is_transposed else FORMATS).items():
        if entry.recognises(parts):
            try:
                layout = replace(entry.describe(stem, parts).configured(quantization), kind=name)
            except DamagedError as damaged:
                raise unusable(damaged.ref, name, damaged.reason) from None
            if left := parts.keys() - set(layout.parts) - _OF_ACTIVATIONS:
                raise unusable(parts[min(left)], name, f"it means something to {stem} that this version does not know")
            return layout
    held = ", ".join(f"{stem}{suffix} {ref.dtype}{list(ref.shape)}" for suffix, ref in sorted(parts.items()))
    raise EngineError(
        "checkpoint.format", f"The weights {held} are in a format that is not supported.", "Get another release of this model."
    )


def require_one_format(layouts: Iterable[Layout]) -> str:
    """The format that all have. Raises `EngineError`, naming two that differ: the experts of a layer must be alike."""
    first: Layout | None = None
    for layout in layouts:
        if first is None:
            first = layout
        elif layout.kind != first.kind:
            raise EngineError(
                "checkpoint.mixed_formats",
                f"{first.stem} is {first.kind} and {layout.stem} is {layout.kind}: a layer's experts must share one format.",
                "Get another release of this model.",
            )
    assert first is not None, "a layer has experts"
    return first.kind
