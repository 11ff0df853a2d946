"""Published names, types and shapes become a weight whose values are the format's own; whatever is off is refused by name."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint.safetensors import TensorRef, read_header
from engine.errors import EngineError
from engine.kernels.reference import dequantise
from engine.kernels.weights import as_bytes
from engine.quant.layout import Layout
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


def odd_fp8() -> tuple[Tensors, torch.Tensor]:
    """Rows that eight blocks of 128 cover with the last one partial, and that divide by eight too."""
    codes, scales = (torch.randn(1000, 192) * 50).to(torch.float8_e4m3fn), torch.rand(8, 2).bfloat16()
    spread = scales.double().repeat_interleave(128, 0)[:1000].repeat_interleave(128, 1)[:, :192]
    return {".weight": codes, ".weight_scale": scales}, codes.double() * spread


def mxfp8() -> tuple[Tensors, torch.Tensor]:
    codes, powers = torch.randn(ROWS, COLS).to(torch.float8_e4m3fn), torch.randint(-9, 3, (ROWS, COLS // 32))
    values = codes.double() * torch.exp2(powers.double()).repeat_interleave(32, 1)
    return {".weight": codes, ".weight_scale": (powers + 127).to(torch.uint8)}, values


def compressed_mxfp4() -> tuple[Tensors, torch.Tensor]:
    codes, powers = torch.randint(0, 16, (ROWS, COLS)), torch.randint(-9, 3, (ROWS, COLS // 32))
    values = E2M1[codes] * torch.exp2(powers.double()).repeat_interleave(32, 1)
    return {".weight_packed": pack_low_first(codes), ".weight_scale": (powers + 127).to(torch.uint8)}, values


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


def pack_quantized(zeroed: bool, group: int = 128) -> tuple[Tensors, torch.Tensor]:
    count = COLS // group
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), torch.rand(ROWS, count).bfloat16()
    zeros = torch.randint(0, 16, (ROWS, count)) if zeroed else torch.full((ROWS, count), 8)
    tensors = {
        ".weight_packed": pack_words(codes.view(ROWS, COLS // 8, 8)),
        ".weight_scale": scales,
        ".weight_shape": torch.tensor([ROWS, COLS]),
    }
    if zeroed:
        tensors[".weight_zero_point"] = pack_words(zeros.view(ROWS // 8, 8, count).permute(0, 2, 1))
    return tensors, (codes - zeros.repeat_interleave(group, 1)).double() * scales.double().repeat_interleave(group, 1)


def gptq(less: int, symmetric: bool = False) -> tuple[Tensors, torch.Tensor]:
    """Version 1 stores zero points less 1."""
    codes, scales = torch.randint(0, 16, (ROWS, COLS)), torch.rand(2, ROWS).half()
    zeros = torch.full((2, ROWS), 8) if symmetric else torch.randint(1, 16, (2, ROWS))
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
    "fp8-partial-block": ("FP8", odd_fp8),
    "mxfp8": ("FP8", mxfp8),
    "mxfp4-compressed": ("MXFP4", compressed_mxfp4),
    "fp4-per-expert": ("MXFP4", deepseek_fp4),
    "nvfp4-modelopt": ("NVFP4", modelopt_nvfp4),
    "nvfp4-compressed": ("NVFP4", compressed_nvfp4),
    "int4": ("INT4", lambda: pack_quantized(False)),
    "int4-16": ("INT4", lambda: pack_quantized(False, 16)),
    "int4-channel": ("INT4", lambda: pack_quantized(False, COLS)),
    "int4-zeros": ("INT4", lambda: pack_quantized(True)),
    "int4-zeros-32": ("INT4", lambda: pack_quantized(True, 32)),
    "gptq-1": ("GPTQ", lambda: gptq(1)),
    "gptq-2": ("GPTQ", lambda: gptq(0)),
    "gptq-2-undeclared": ("GPTQ", lambda: gptq(0, symmetric=True)),
    "awq": ("AWQ", awq),
}


DECLARED: dict[str, Mapping[str, str]] = {"gptq-2": {"checkpoint_format": "gptq_v2"}, "gptq-1": {"checkpoint_format": "gptq"}}


def parts_of(tensors: Tensors, folder: Path) -> dict[str, TensorRef]:
    save_file({STEM + suffix: tensor.contiguous() for suffix, tensor in tensors.items()}, folder / "model.safetensors")
    return by_stem(read_header(folder / "model.safetensors"))[STEM]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tensors_mean_what_they_should(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected, make = PUBLISHED[name]
    tensors, values = make()
    refs = parts_of(tensors, tmp_path)
    layout = recognise(STEM, refs, DECLARED.get(name, {}))
    assert layout.kind == expected
    weight = layout.bind(tensors)
    assert weight.shape == tuple(values.shape)
    assert relative_error(dequantise(weight), values) < 1e-6
    assert (weight.bias is not None) == (".bias" in tensors)
    for suffix in layout.parts:
        layout.check(suffix, as_bytes(tensors[suffix]), refs[suffix])


def test_gpt_oss_experts_are_slices_of_fused_tensors(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers.integrations.mxfp4")
    torch.manual_seed(2)
    stem = "model.layers.0.mlp.experts.gate_up_proj"
    blocks = torch.randint(0, 256, (4, 24, 8, 16), dtype=torch.uint8)
    scales, bias = torch.randint(110, 135, (4, 24, 8), dtype=torch.uint8), torch.randn(4, 24).bfloat16()
    save_file({f"{stem}_blocks": blocks, f"{stem}_scales": scales, f"{stem}_bias": bias}, tmp_path / "model.safetensors")
    layout = recognise(stem, by_stem(read_header(tmp_path / "model.safetensors"))[stem], {})
    assert layout.kind == "MXFP4"
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
            recognise(STEM, broken, {})
        assert STEM in caught.value.text


def layout_of(tensors: Tensors, folder: Path) -> tuple[Layout, Mapping[str, TensorRef]]:
    refs = parts_of(tensors, folder)
    return recognise(STEM, refs, {}), refs


POISONED = {
    "fp8-block": ".weight_scale_inv", "fp8-tensor": ".weight_scale", "fp8-e8m0": ".scale", "nvfp4-modelopt": ".weight_scale",
    "int4": ".weight_scale", "fp4-per-expert": ".scale", "mxfp8": ".weight_scale", "awq": ".scales",
}  # fmt: skip


@pytest.mark.parametrize("name", POISONED)
def test_scales_that_are_no_numbers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(4)
    tensors, suffix = PUBLISHED[name][1]()[0], POISONED[name]
    layout, refs = layout_of(tensors, tmp_path)
    can_be_infinite = tensors[suffix].dtype in (torch.float32, torch.bfloat16, torch.float16)
    for poison in (float("nan"), float("inf"), -float("inf"))[: 3 if can_be_infinite else 1]:
        raw = tensors[suffix].clone()
        if raw.dtype == torch.uint8:
            raw.flatten()[-1] = 255
        else:
            numbers = raw.float()
            numbers.view(-1)[-1] = poison
            raw = numbers.to(raw.dtype)
        with pytest.raises(EngineError, match="1 of its scales are not finite") as caught:
            layout.check(suffix, as_bytes(raw), refs[suffix])
        assert all(part in caught.value.text for part in (STEM + suffix, "model.safetensors", layout.kind))


def test_large_scales_are_numbers(tmp_path: Path) -> None:
    """Their sum overflows, and none of them is infinite."""
    tensors, _ = deepseek_fp8()
    layout, refs = layout_of(tensors, tmp_path)
    layout.check(".weight_scale_inv", as_bytes(torch.full((1, 2), 3e38)), refs[".weight_scale_inv"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("suffix", [".weight_scale_2", ".weight_global_scale"])
def test_global_scales_are_positive_numbers(suffix: str, value: float, tmp_path: Path) -> None:
    layout, refs = layout_of((modelopt_nvfp4 if suffix == ".weight_scale_2" else compressed_nvfp4)()[0], tmp_path)
    with pytest.raises(EngineError, match=f"{suffix} .* no positive number"):
        layout.check(suffix, as_bytes(torch.tensor([value])), refs[suffix])


def test_reordered_columns_are_refused(tmp_path: Path) -> None:
    shuffled = (torch.arange(COLS, dtype=torch.int32) // 128).flip(0).contiguous()
    for suffix, tensors in ((".g_idx", gptq(1)[0]), (".weight_g_idx", pack_quantized(False)[0])):
        layout, refs = layout_of(tensors | {suffix: shuffled}, tmp_path)
        assert suffix in layout.parts, "or nobody loads it"
        with pytest.raises(EngineError, match=f"{suffix} .*reordered"):
            layout.check(suffix, as_bytes(shuffled), refs[suffix])
        layout.check(suffix, as_bytes(shuffled.flip(0).contiguous()), refs[suffix])


def test_a_declared_shape_that_differs(tmp_path: Path) -> None:
    layout, refs = layout_of(pack_quantized(False)[0], tmp_path)
    with pytest.raises(EngineError, match=r"weight_shape .*\[24, 250\]"):
        layout.check(".weight_shape", as_bytes(torch.tensor([ROWS, 250])), refs[".weight_shape"])


def test_mixed_formats_and_unknown_ones(tmp_path: Path) -> None:
    fp8, four_bit = (layout_of(PUBLISHED[name][1]()[0], tmp_path)[0] for name in ("fp8-block", "int4"))
    assert require_one_format([fp8] * 3) == "FP8"
    with pytest.raises(EngineError, match="must share one format"):
        require_one_format([fp8, four_bit])
    with pytest.raises(EngineError, match="not supported"):
        recognise(STEM, {".weight": TensorRef(STEM + ".weight", tmp_path, 0, 4, "I64", (2, 2))}, {})
