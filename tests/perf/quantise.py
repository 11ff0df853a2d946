"""Real weights in each published encoding, rounded to nearest: [out, in] in, tensors by suffix out. Knows formats, no files.

Only what a reader must understand: no calibration, no search for better scales.
"""

from collections.abc import Callable

import torch

Tensors = dict[str, torch.Tensor]  # by suffix after the matrix's name
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
_BETWEEN_E2M1 = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])  # of 0, 0.5, 1, 1.5, 2, 3, 4, 6


def fp8_block(weight: torch.Tensor, block: int = 128) -> Tensors:
    rows, cols = weight.shape
    tall, wide = -(-rows // block), -(-cols // block)
    padded = torch.zeros(tall * block, wide * block)
    padded[:rows, :cols] = weight
    scales = (padded.view(tall, block, wide, block).abs().amax((1, 3)) / 448).clamp(min=1e-12)
    spread = scales.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :cols]
    return {".weight": (weight / spread).to(torch.float8_e4m3fn), ".weight_scale_inv": scales}


def _e2m1(scaled: torch.Tensor) -> torch.Tensor:
    """Pairs of codes [rows, in / 2], the even column in the low nibble; beyond 6 is 6."""
    codes = torch.bucketize(scaled.abs(), _BETWEEN_E2M1).to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
    return codes[:, 0::2] | codes[:, 1::2] << 4


def mxfp4(weight: torch.Tensor) -> Tensors:
    rows, cols = weight.shape
    most = weight.view(rows, cols // 32, 32).abs().amax(-1).clamp(min=1e-30)
    exponents = most.log2().floor() - 2  # OCP Microscaling Formats 1.0, section 6.3
    codes = _e2m1(weight / exponents.exp2().repeat_interleave(32, 1))
    return {".weight": codes, ".weight_scale": (exponents + 127).clamp(0, 254).to(torch.uint8)}


def nvfp4(weight: torch.Tensor) -> Tensors:
    rows, cols = weight.shape
    whole = (weight.abs().max() / (6 * 448)).clamp(min=1e-30)
    scales = (weight.view(rows, cols // 16, 16).abs().amax(-1) / 6 / whole).clamp(min=2**-9).to(torch.float8_e4m3fn)
    codes = _e2m1(weight / (scales.float() * whole).repeat_interleave(16, 1))
    return {".weight": codes, ".weight_scale": scales, ".weight_scale_2": whole.reshape(())}


def _int4(weight: torch.Tensor, group: int, zeroed: bool, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Codes 0 to 15 [rows, in], scales and zero points [rows, groups]."""
    rows, cols = weight.shape
    grouped = weight.view(rows, cols // group, group)
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    spread = (high - low) / 15 if zeroed else torch.maximum(high / 7, -low / 8)
    scales = spread.clamp(min=1e-7).to(dtype)
    zeros = (-low / scales.float()).round().clamp(1, 15) if zeroed else torch.full_like(low, 8.0)
    codes = (grouped / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.view(rows, cols).long(), scales, zeros.long()


def _words(nibbles: torch.Tensor) -> torch.Tensor:
    """Nibbles [..., 8], lowest first, to int32 [...]."""
    words = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def pack_quantized(weight: torch.Tensor, zeroed: bool = False, group: int = 32) -> Tensors:
    rows, cols = weight.shape
    codes, scales, zeros = _int4(weight, group, zeroed, torch.bfloat16)
    tensors = {
        ".weight_packed": _words(codes.view(rows, cols // 8, 8)),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([rows, cols]),
    }
    if zeroed:
        tensors[".weight_zero_point"] = _words(zeros.view(rows // 8, 8, -1).transpose(1, 2))
    return tensors


def gptq(weight: torch.Tensor, group: int = 32) -> Tensors:
    """Version 1, symmetric, in the columns' own order."""
    rows, cols = weight.shape
    codes, scales, zeros = _int4(weight, group, False, torch.float16)
    return {
        ".qweight": _words(codes.t().reshape(cols // 8, 8, rows).transpose(1, 2)),
        ".qzeros": _words((zeros - 1).t().reshape(cols // group, rows // 8, 8)),
        ".scales": scales.t().contiguous(),
        ".g_idx": torch.arange(cols, dtype=torch.int32) // group,
    }


def awq(weight: torch.Tensor, group: int = 32) -> Tensors:
    rows, cols = weight.shape
    codes, scales, zeros = _int4(weight, group, True, torch.float16)
    return {
        ".qweight": _words(codes.t().reshape(cols, rows // 8, 8)[..., AWQ_ORDER]),
        ".qzeros": _words(zeros.t().reshape(cols // group, rows // 8, 8)[..., AWQ_ORDER]),
        ".scales": scales.t().contiguous(),
    }


QUANTISERS: dict[str, Callable[[torch.Tensor], Tensors]] = {
    "FP8": fp8_block,
    "MXFP4": mxfp4,
    "NVFP4": nvfp4,
    "INT4": pack_quantized,
    "INT4 zero points": lambda weight: pack_quantized(weight, zeroed=True),
    "GPTQ": gptq,
    "AWQ": awq,
}
