"""GPTQ, 4 bits: `qweight` I32 [in / 8, out], `scales` F16 [groups, out], `qzeros` I32 [groups, out / 8], `g_idx` I32 [in].

Version 1 stores zero points less 1, version 2 as they are. The header does not tell them apart, config.json's
`quantization_config.checkpoint_format` does ("gptq_v2"); where it says nothing, a matrix with 8 in every nibble is version 2,
since version 1 would read 9 and no quantiser writes that. Reordered columns (`desc_act`, a `g_idx` that does not ascend) are
refused: their groups are scattered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.kernels.weights import Format, Weight, as_bytes
from engine.quant.layout import SCALE_TYPES, DamagedError, Layout, Parts, bias_of, expect, groups, matrix_of, optional

_ALL_EIGHTS = 0x88


@dataclass(frozen=True, slots=True)
class GptqLayout(Layout):
    def configured(self, quantization: Mapping[str, Any]) -> Layout:
        return replace(self, zero_offset=0 if quantization.get("checkpoint_format") == "gptq_v2" else 1)

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        weight = Layout.bind(self, tensors)
        if weight.zero_offset and bool((as_bytes(tensors[".qzeros"]) == _ALL_EIGHTS).all()):
            return replace(weight, zero_offset=0)
        return weight


def recognises(parts: Parts) -> bool:
    return ".qweight" in parts


def describe(stem: str, parts: Parts) -> Layout:
    words, rows = matrix_of(parts, ".qweight", "[in / 8, out]")
    cols = words * 8
    if rows % 8:
        raise DamagedError(parts[".qweight"], f"{rows} rows are no multiple of 8")
    count = parts[".scales"].shape[0] if ".scales" in parts and parts[".scales"].shape else 1
    expect(parts, ".qweight", ("I32",), (words, rows))
    scales = expect(parts, ".scales", ("F16", "BF16", "F32"), (count, rows))
    expect(parts, ".qzeros", ("I32",), (count, rows // 8))
    block = groups(cols, count, scales)
    if block % 32:
        raise DamagedError(scales, f"groups of {block} columns are not supported")
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(parts, ".bias", rows)
    return GptqLayout(
        stem, Format.INT4_GPTQ, rows, cols, ".qweight", rows * 4,
        ".scales", SCALE_TYPES[scales.dtype], size, rows * size, 1, block,
        ".qzeros", rows // 8 * 4, 1, bias=bias, bias_dtype=bias_dtype, order=optional(parts, ".g_idx", ("I32",), (cols,)),
    )  # fmt: skip
