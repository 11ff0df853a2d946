"""Every published encoding of a weight, written from its layout: tensors by suffix, and what their codes mean in fp32.

The meaning comes from the codes before they are packed, never from a reader. Rounded to nearest, no search for better scales.
Sources: DeepSeek-V3's and Qwen3's FP8 releases (blocks), compressed-tensors (float-quantized, pack-quantized,
nvfp4-pack-quantized, mxfp4-pack-quantized), NVIDIA ModelOpt (FP8, NVFP4), AMD Quark and DeepSeek-V4 (MXFP4), OCP Microscaling
Formats 1.0 (E2M1), AutoGPTQ (GPTQ), AutoAWQ (WQLinear_GEMM).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, torch.Tensor]
Writer = Callable[[torch.Tensor], Written]  # of a matrix [out, in]

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
_AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
_MOST_FP8, _MOST_E2M1 = 448.0, 6.0


@dataclass(frozen=True)
class Encoding:
    """`dense` is how the other matrices are written where their columns are a multiple of `unit`; None leaves them plain."""

    experts: Writer
    dense: Writer | None
    unit: int
    hidden: int  # sizes of a tiny model that it divides, or just does not
    inner: int
    quantization: dict[str, Any] = field(default_factory=dict)  # what config.json says of it


def _grouped(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """That dimension as two, the inner one of `size`."""
    return x.reshape(*x.shape[:dim], -1, size, *x.shape[dim + 1 :])


def _fp8(weight: torch.Tensor, scales: torch.Tensor, tall: int, wide: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and their meaning, under scales for blocks of that size."""
    rows, cols = weight.shape
    spread = scales.float().repeat_interleave(tall, 0)[:rows].repeat_interleave(wide, 1)[:, :cols]
    codes = (weight / spread).clamp(-_MOST_FP8, _MOST_FP8).to(torch.float8_e4m3fn)
    return codes, codes.float() * spread


def _block_scales(weight: torch.Tensor, edge: int) -> torch.Tensor:
    tall, wide = (-(-size // edge) for size in weight.shape)
    blocks = [[part.abs().max() for part in torch.split(band, edge, 1)] for band in torch.split(weight, edge, 0)]
    return torch.tensor(blocks).view(tall, wide) / _MOST_FP8 + 1e-12


def fp8_blocks(weight: torch.Tensor, edge: int = 128) -> Written:
    scales = _block_scales(weight, edge)
    codes, meant = _fp8(weight, scales, edge, edge)
    return {".weight": codes, ".weight_scale_inv": scales}, meant


def fp8_blocks_by_powers(weight: torch.Tensor, edge: int = 128) -> Written:
    """DeepSeek-V4: scales that are powers of two, in 8 bits."""
    scales = _block_scales(weight, edge).log2().ceil().exp2()
    codes, meant = _fp8(weight, scales, edge, edge)
    return {".weight": codes, ".scale": scales.to(torch.float8_e8m0fnu)}, meant


def fp8_channels(weight: torch.Tensor) -> Written:
    scales = (weight.abs().amax(1, keepdim=True) / _MOST_FP8 + 1e-9).bfloat16()
    codes, meant = _fp8(weight, scales, 1, weight.shape[1])
    return {".weight": codes, ".weight_scale": scales}, meant


def fp8_tensor(weight: torch.Tensor) -> Written:
    scale = weight.abs().max() / _MOST_FP8 + 1e-9
    codes, meant = _fp8(weight, scale.view(1, 1), *weight.shape)
    return {".weight": codes, ".weight_scale": scale, ".input_scale": torch.tensor(0.5)}, meant


def _four_bits(scaled: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes in pairs [out, in / 2], the even column low, and the numbers that they stand for [out, in]."""
    codes = (scaled.abs()[..., None] - _E2M1).abs().argmin(-1)
    nibbles = (codes + 8 * (scaled < 0)).to(torch.uint8)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4, _E2M1[codes] * scaled.sign()


def mxfp4(data: str, scale: str, codes_as: torch.dtype = torch.uint8, scales_as: torch.dtype = torch.uint8) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        most = _grouped(weight, 1, 32).abs().amax(-1).clamp(min=1e-20)
        exponents = most.log2().floor() - 2  # OCP Microscaling Formats 1.0, section 6.3
        spread = exponents.exp2().repeat_interleave(32, 1)
        packed, numbers = _four_bits(weight / spread)
        return {data: packed.view(codes_as), scale: (exponents + 127).to(torch.uint8).view(scales_as)}, numbers * spread

    return write


def mxfp4_blocks(stacked: torch.Tensor) -> Written:
    """gpt-oss: [E, out, in] to `_blocks` [E, out, in / 32, 16] and `_scales` [E, out, in / 32]."""
    each = [mxfp4("", "scales")(matrix) for matrix in stacked]
    blocks = torch.stack([_grouped(parts[""], 1, 16) for parts, _ in each])
    return {"_blocks": blocks, "_scales": torch.stack([parts["scales"] for parts, _ in each])}, torch.stack(
        [one for _, one in each]
    )


def nvfp4(data: str, whole: str, *, divides: bool) -> Writer:
    """ModelOpt's scale of the matrix multiplies, compressed-tensors stores what divides."""

    def write(weight: torch.Tensor) -> Written:
        factor = weight.abs().max() / (_MOST_E2M1 * _MOST_FP8)
        stored = 1 / factor if divides else factor
        factor = 1 / stored if divides else stored
        scales = (_grouped(weight, 1, 16).abs().amax(-1) / _MOST_E2M1 / factor).clamp(min=2**-9).to(torch.float8_e4m3fn)
        spread = (scales.float() * factor).repeat_interleave(16, 1)
        packed, numbers = _four_bits(weight / spread)
        unused = {".input_global_scale" if divides else ".input_scale": torch.tensor(0.5)}
        own = stored.view(1) if divides else stored
        return {data: packed, ".weight_scale": scales, whole: own} | unused, numbers * spread

    return write


def _integers(weight: torch.Tensor, group: int, dtype: torch.dtype, *, zeroed: bool) -> tuple[torch.Tensor, ...]:
    """Codes 0 to 15 [out, in], zero points and scales [out, groups], meaning."""
    grouped = _grouped(weight, 1, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    scales = ((high - low) / 15 if zeroed else torch.maximum(high / 7, -low / 8)).clamp(min=1e-6).to(dtype)
    zeros = (-low / scales.float()).round().clamp(1, 15) if zeroed else torch.full_like(low, 8)
    codes = (grouped / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.flatten(1).long(), zeros.long(), scales, ((codes - zeros[..., None]) * scales.float()[..., None]).flatten(1)


def _words(nibbles: torch.Tensor) -> torch.Tensor:
    """Nibbles [..., 8], lowest first, to int32 [...]."""
    words = sum(nibbles[..., place].long() << 4 * place for place in range(8))
    assert isinstance(words, torch.Tensor), "eight of them"
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def pack_quantized(group: int, *, zeroed: bool) -> Writer:
    def write(weight: torch.Tensor) -> Written:
        codes, zeros, scales, meant = _integers(weight, group, torch.bfloat16, zeroed=zeroed)
        parts = {
            ".weight_packed": _words(_grouped(codes, 1, 8)),
            ".weight_scale": scales,
            ".weight_shape": torch.tensor(weight.shape),
        }
        if zeroed:
            parts[".weight_zero_point"] = _words(_grouped(zeros, 0, 8).transpose(1, 2))
        return parts, meant

    return write


def gptq(weight: torch.Tensor, group: int = 128) -> Written:
    codes, zeros, scales, meant = _integers(weight, group, torch.float16, zeroed=True)
    return {
        ".qweight": _words(_grouped(codes.t(), 0, 8).transpose(1, 2)),
        ".qzeros": _words(_grouped((zeros.t() - 1), 1, 8)),
        ".scales": scales.t(),
        ".g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // group,
    }, meant


def awq(weight: torch.Tensor, group: int = 128) -> Written:
    codes, zeros, scales, meant = _integers(weight, group, torch.float16, zeroed=True)
    return {
        ".qweight": _words(_grouped(codes.t(), 1, 8)[..., _AWQ_ORDER]),
        ".qzeros": _words(_grouped(zeros.t(), 1, 8)[..., _AWQ_ORDER]),
        ".scales": scales.t(),
    }, meant


_quark = mxfp4(".weight", ".weight_scale")
_packed_mxfp4 = mxfp4(".weight_packed", ".weight_scale")
_v4 = mxfp4(".weight", ".scale", torch.int8, torch.float8_e8m0fnu)
_modelopt = nvfp4(".weight", ".weight_scale_2", divides=False)
_packed_nvfp4 = nvfp4(".weight_packed", ".weight_global_scale", divides=True)
_by_32, _by_128, _zeroed = (
    pack_quantized(32, zeroed=False),
    pack_quantized(128, zeroed=False),
    pack_quantized(32, zeroed=True),
)
_PACKED = {"quant_method": "compressed-tensors"}
ENCODINGS: dict[str, Encoding] = {
    "FP8 blocks": Encoding(fp8_blocks, fp8_blocks, 1, 192, 160, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "FP8 channels": Encoding(fp8_channels, fp8_channels, 1, 64, 48, _PACKED),
    "FP8 tensor": Encoding(fp8_tensor, fp8_tensor, 1, 64, 48, {"quant_method": "modelopt", "quant_algo": "FP8"}),
    "MXFP4, Quark": Encoding(_quark, _quark, 32, 64, 96, {"quant_method": "quark"}),
    "MXFP4, packed": Encoding(_packed_mxfp4, None, 32, 64, 96, _PACKED),
    "FP4 experts, FP8 dense": Encoding(_v4, fp8_blocks, 1, 192, 160, {"quant_method": "fp8"}),
    "FP4 experts, FP8 dense by powers of 2": Encoding(
        _v4,
        fp8_blocks_by_powers,
        1,
        192,
        160,
        {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "ue8m0", "weight_block_size": [128, 128]},
    ),
    "NVFP4, ModelOpt": Encoding(_modelopt, _modelopt, 16, 64, 48, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "NVFP4, FP8 attention": Encoding(_modelopt, fp8_tensor, 16, 64, 48, {"quant_method": "modelopt"}),
    "NVFP4, packed": Encoding(_packed_nvfp4, _packed_nvfp4, 16, 64, 48, _PACKED),
    "INT4 by 32": Encoding(_by_32, None, 32, 64, 96, _PACKED),
    "INT4 by 128": Encoding(_by_128, _by_128, 128, 256, 128, _PACKED),
    "INT4, zero points": Encoding(_zeroed, _zeroed, 32, 64, 96, _PACKED),
    "GPTQ": Encoding(gptq, gptq, 128, 256, 128, {"quant_method": "gptq", "bits": 4, "desc_act": False}),
    "AWQ": Encoding(awq, awq, 128, 256, 128, {"quant_method": "awq", "bits": 4}),
}
