"""GPTQ, 4 bits: `qweight` I32 [in / 8, out], `scales` F16 [groups, out], `qzeros` I32 [groups, out / 8], `g_idx` I32 [in].

Version 1 stores zero points less 1, version 2 as they are. Nothing in the header tells them apart, but a symmetric matrix of
version 2 has 8 in every nibble, which version 1 would read as 9 and no quantiser writes. Reordered columns (`desc_act`, a
`g_idx` that does not ascend) are refused: their groups are scattered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from engine.kernels.weights import Format, Weight
from engine.quant.layout import SCALE_TYPES, Layout, Parts, bias_of, damaged, expect, groups

_ALL_EIGHTS = -0x77777778  # 0x88888888 as int32


@dataclass(frozen=True, slots=True)
class GptqLayout(Layout):
    has_order: bool = False

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> Weight:
        if self.has_order:
            order = tensors[".g_idx"].clone().view(torch.int32)
            if not torch.equal(order, torch.arange(self.cols, dtype=torch.int32) // self.block_cols):
                raise damaged(self.stem + ".g_idx", "its columns are reordered (desc_act), which is not supported")
        weight = Layout.bind(self, tensors)
        zeros = tensors[".qzeros"].clone().view(torch.int32)
        return replace(weight, zero_offset=0 if bool((zeros == _ALL_EIGHTS).all()) else 1)


def recognises(parts: Parts) -> bool:
    """AWQ packs along the other axis: there [in, out / 8] has as many rows as the matrix has columns."""
    return {".qweight", ".qzeros", ".scales"} <= parts.keys() and parts[".qweight"].shape[-1:] == parts[".scales"].shape[-1:]


def describe(stem: str, parts: Parts) -> Layout:
    codes = parts[".qweight"]
    if len(codes.shape) != 2 or codes.shape[1] % 8:
        raise damaged(codes.name, f"its shape is {list(codes.shape)} where [in / 8, out] belongs")
    rows, cols = codes.shape[1], codes.shape[0] * 8
    count = parts[".scales"].shape[0] if parts[".scales"].shape else 1
    expect(stem, parts, ".qweight", ("I32",), codes.shape)
    scales = expect(stem, parts, ".scales", ("F16", "BF16", "F32"), (count, rows))
    expect(stem, parts, ".qzeros", ("I32",), (count, rows // 8))
    block = groups(stem, cols, replace(scales, shape=(rows, count)))
    if block % 32:
        raise damaged(scales.name, f"groups of {block} columns are not supported")
    size = scales.nbytes // (rows * count)
    bias, bias_dtype = bias_of(stem, parts, ".bias", rows)
    return GptqLayout(
        stem, Format.INT4_GPTQ, rows, cols, ".qweight", rows * 4,
        ".scales", SCALE_TYPES[scales.dtype], size, rows * size, 1, block,
        ".qzeros", rows // 8 * 4, bias=bias, bias_dtype=bias_dtype, has_order=".g_idx" in parts,
    )  # fmt: skip
