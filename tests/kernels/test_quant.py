"""Published names, types and shapes become a weight whose values are the format's own; whatever is off is refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint.safetensors import TensorRef, read_header
from engine.errors import EngineError
from engine.kernels.reference import dequantise
from engine.quant.layout import check_scales
from engine.quant.registry import by_stem, recognise, require_one_format
from tests.kernels.matrices import E2M1, pack_low_first, pack_words, relative_error

Tensors = dict[str, torch.Tensor]
STEM = "model.layers.3.mlp.experts.7.up_proj"
ROWS, COLS = 24, 256


def bf16() -> tuple[Tensors, torch.Tensor]:
    values = torch.randn(ROWS, COLS).bfloat16()
    return {".weight": values, ".bias": torch.randn(ROWS).bfloat16()}, values.double()


def deepseek_fp8() -> tuple[Tensors, torch.Tensor]:
    codes, scales = (torch.randn(ROWS, COLS) * 50).to(torch.float8_e4m3fn), torch.rand(1, 2)
    return {".weight": codes, ".weight_scale_inv": scales}, codes.double() * scales.double().repeat_interleave(128, 1)


def channel_fp8() -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randn(ROWS, COLS).to(torch.float8_e4m3fn), torch.rand(ROWS, 1).bfloat16()
    return {".weight": codes, ".weight_scale": scales, ".input_scale": torch.ones(1)}, codes.double() * scales.double()


def tensor_fp8() -> tuple[Tensors, torch.Tensor]:
    codes = torch.randn(ROWS, COLS).to(torch.float8_e4m3fn)
    return {".weight": codes, ".weight_scale": torch.tensor(0.25)}, codes.double() * 0.25


def e8m0_fp8() -> tuple[Tensors, torch.Tensor]:
    codes, powers = torch.randn(64, COLS).to(torch.float8_e4m3fn), torch.randint(-9, 3, (2, 8))
    scales = torch.exp2(powers.float()).to(torch.float8_e8m0fnu)
    values = codes.double() * torch.exp2(powers.double()).repeat_interleave(32, 0).repeat_interleave(32, 1)
    return {".weight": codes, ".scale": scales}, values


def deepseek_fp4() -> tuple[Tensors, torch.Tensor]:
    codes, powers = torch.randint(0, 16, (ROWS, COLS)), torch.randint(-9, 3, (ROWS, COLS // 32))
    values = E2M1[codes] * torch.exp2(powers.double()).repeat_interleave(32, 1)
    return {
        ".weight": pack_low_first(codes).view(torch.int8),
        ".scale": torch.exp2(powers.float()).to(torch.float8_e8m0fnu),
    }, values


def modelopt_nvfp4() -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), (torch.rand(ROWS, COLS // 16) * 448).to(torch.float8_e4m3fn)
    values = E2M1[codes] * scales.double().repeat_interleave(16, 1) * 0.003
    return {".weight": pack_low_first(codes), ".weight_scale": scales, ".weight_scale_2": torch.tensor(0.003)}, values


def compressed_nvfp4() -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), (torch.rand(ROWS, COLS // 16) * 448).to(torch.float8_e4m3fn)
    values = E2M1[codes] * scales.double().repeat_interleave(16, 1) / 320.0
    return {
        ".weight_packed": pack_low_first(codes), ".weight_scale": scales, ".weight_global_scale": torch.tensor([320.0]),
    }, values  # fmt: skip


def pack_quantized(zeroed: bool) -> tuple[Tensors, torch.Tensor]:
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), torch.rand(ROWS, 2).bfloat16()
    zeros = torch.randint(0, 16, (ROWS, 2)) if zeroed else torch.full((ROWS, 2), 8)
    tensors = {
        ".weight_packed": pack_words(codes.view(ROWS, COLS // 8, 8)),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([ROWS, COLS]),
    }
    if zeroed:
        tensors[".weight_zero_point"] = pack_words(zeros.view(ROWS // 8, 8, 2).permute(0, 2, 1))
    return tensors, (codes - zeros.repeat_interleave(128, 1)).double() * scales.double().repeat_interleave(128, 1)


def gptq(less: int) -> tuple[Tensors, torch.Tensor]:
    """Version 1 stores zero points less 1; a symmetric matrix of version 2 stores 8."""
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), torch.rand(2, ROWS).half()
    zeros = torch.randint(1, 16, (2, ROWS)) if less else torch.full((2, ROWS), 8)
    tensors = {
        ".qweight": pack_words(codes.t().reshape(COLS // 8, 8, ROWS).permute(0, 2, 1)),
        ".qzeros": pack_words((zeros - less).view(2, ROWS // 8, 8)),
        ".scales": scales,
        ".g_idx": torch.arange(COLS, dtype=torch.int32) // 128,
    }
    spread = zeros.t().repeat_interleave(128, 1)
    return tensors, (codes - spread).double() * scales.t().double().repeat_interleave(128, 1)


def awq() -> tuple[Tensors, torch.Tensor]:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    codes, scales, zeros = torch.randint(0, 16, (ROWS, COLS)), torch.rand(2, ROWS).half(), torch.randint(0, 16, (2, ROWS))
    tensors = {
        ".qweight": pack_words(codes.t().reshape(COLS, ROWS // 8, 8)[..., order]),
        ".qzeros": pack_words(zeros.view(2, ROWS // 8, 8)[..., order]),
        ".scales": scales,
    }
    return tensors, (codes - zeros.t().repeat_interleave(128, 1)).double() * scales.t().double().repeat_interleave(128, 1)


PUBLISHED: dict[str, tuple[str, Callable[[], tuple[Tensors, torch.Tensor]]]] = {
    "bf16": ("16/32-bit", bf16),
    "fp8-block": ("FP8", deepseek_fp8),
    "fp8-channel": ("FP8", channel_fp8),
    "fp8-tensor": ("FP8", tensor_fp8),
    "fp8-e8m0": ("FP8", e8m0_fp8),
    "fp4-per-expert": ("MXFP4", deepseek_fp4),
    "nvfp4-modelopt": ("NVFP4", modelopt_nvfp4),
    "nvfp4-compressed": ("NVFP4", compressed_nvfp4),
    "int4": ("INT4", lambda: pack_quantized(False)),
    "int4-zeros": ("INT4", lambda: pack_quantized(True)),
    "gptq-1": ("GPTQ", lambda: gptq(1)),
    "gptq-2": ("GPTQ", lambda: gptq(0)),
    "awq": ("AWQ", awq),
}


def parts_of(tensors: Tensors, folder: Path) -> dict[str, TensorRef]:
    save_file({STEM + suffix: tensor.contiguous() for suffix, tensor in tensors.items()}, folder / "model.safetensors")
    return by_stem(read_header(folder / "model.safetensors"))[STEM]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tensors_mean_what_they_should(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected, make = PUBLISHED[name]
    tensors, values = make()
    found, layout = recognise(STEM, parts_of(tensors, tmp_path))
    assert found == expected
    weight = layout.bind(tensors)
    assert weight.shape == tuple(values.shape)
    assert relative_error(dequantise(weight), values) < 1e-6
    assert (weight.bias is not None) == (".bias" in tensors)
    check_scales(weight, STEM)


def test_gpt_oss_experts_are_slices_of_fused_tensors(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers.integrations.mxfp4")
    torch.manual_seed(2)
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    blocks = torch.randint(0, 256, (4, 24, 8, 16), dtype=torch.uint8)
    scales, bias = torch.randint(110, 135, (4, 24, 8), dtype=torch.uint8), torch.randn(4, 24).bfloat16()
    save_file({f"{stem}_blocks": blocks, f"{stem}_scales": scales, f"{stem}_bias": bias}, tmp_path / "model.safetensors")
    found, layout = recognise(stem, by_stem(read_header(tmp_path / "model.safetensors"))[stem])
    assert found == "MXFP4"
    theirs = transformers.convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)  # [E, in, out]
    for expert in range(4):
        weight = layout.bind({"_blocks": blocks[expert], "_scales": scales[expert], "_bias": bias[expert]})
        gate, up = weight.take(0, 12, 2), weight.take(1, 12, 2)  # rows alternate
        assert torch.equal(dequantise(gate), theirs[expert].t()[0::2])
        assert torch.equal(dequantise(up), theirs[expert].t()[1::2])
        assert up.bias is not None
        assert torch.equal(up.bias, bias[expert, 1::2])


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "bf16"])
def test_a_missing_or_misshapen_scale_is_named(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    parts = parts_of(PUBLISHED[name][1]()[0], tmp_path)
    scale = next(suffix for suffix in (".weight_scale_inv", ".weight_scale", ".scales", ".scale") if suffix in parts)
    for broken in (
        {suffix: ref for suffix, ref in parts.items() if suffix != scale},
        parts | {scale: replace(parts[scale], dtype="I32")},
        parts | {scale: replace(parts[scale], shape=(ROWS + 1, 7))},
        parts | {scale: replace(parts[scale], shape=(3, 3, 3))},
        parts | {scale: replace(parts[scale], shape=(0,))},
    ):
        with pytest.raises(EngineError) as caught:
            recognise(STEM, broken)
        assert STEM in caught.value.text


def test_scales_that_are_no_numbers(tmp_path: Path) -> None:
    torch.manual_seed(4)
    poisons = {
        "fp8-block": ".weight_scale_inv",
        "nvfp4-modelopt": ".weight_scale",
        "int4": ".weight_scale",
        "fp4-per-expert": ".scale",
    }
    for name, suffix in poisons.items():
        tensors, _ = PUBLISHED[name][1]()
        _, layout = recognise(STEM, parts_of(tensors, tmp_path))
        raw = tensors[suffix].clone().float()
        raw.flatten()[-1] = float("nan")
        poisoned = layout.bind(tensors | {suffix: raw.to(tensors[suffix].dtype)})
        with pytest.raises(EngineError, match="not finite"):
            check_scales(poisoned, STEM)
    for value in (float("nan"), float("inf"), 0.0, -1.0):
        tensors, _ = compressed_nvfp4()
        layout = recognise(STEM, parts_of(tensors, tmp_path))[1]
        with pytest.raises(EngineError, match="weight_global_scale"):
            layout.bind(tensors | {".weight_global_scale": torch.tensor([value])})


def test_reordered_gptq_columns_are_refused(tmp_path: Path) -> None:
    tensors, _ = gptq(1)
    tensors[".g_idx"] = tensors[".g_idx"].flip(0).contiguous()
    layout = recognise(STEM, parts_of(tensors, tmp_path))[1]
    with pytest.raises(EngineError, match="desc_act"):
        layout.bind(tensors)


def test_mixed_formats_and_unknown_ones(tmp_path: Path) -> None:
    found = [recognise(STEM, parts_of(PUBLISHED[name][1]()[0], tmp_path)) for name in ("fp8-block", "int4")]
    assert require_one_format(found[:1] * 3) == "FP8"
    with pytest.raises(EngineError, match="must share one format"):
        require_one_format(found)
    with pytest.raises(EngineError, match="not supported"):
        recognise(STEM, {".weight": TensorRef(STEM + ".weight", tmp_path, 0, 4, "I64", (2, 2))})
