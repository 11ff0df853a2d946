"""Random weights drawn straight in their encoded form, in each published encoding. Knows bytes and names, no architecture.

Every encoding hits the wanted standard deviation by construction, so that a model's statistics do not depend on it, and draws
its codes uniformly from a range, so that weights come at the rate of raw random numbers and each table entry of a kernel is met.
"""

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.checkpoint.write import TensorSpec

Array = npt.NDArray[Any]
Part = tuple[TensorSpec, Callable[[], Array]]  # a tensor, and what draws its bytes

_E2M1 = np.array((0, 0.5, 1, 1.5, 2, 3, 4, 6), dtype=np.float64)
_E2M1_RMS = float(np.sqrt((_E2M1**2).mean()))
_INT4_RMS = float(np.sqrt((np.arange(-8, 8, dtype=np.float64) ** 2).mean()))
_CHUNK = 1 << 18  # numbers edited at a time, so that they stay in the cache


def generator(seed: int, name: str) -> np.random.Generator:
    """Numbers of one tensor: they depend on its name alone, so that formats and layer counts share what they can."""
    return np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))


def raw_bytes(rng: np.random.Generator, count: int) -> Array:
    words = rng.integers(0, 2**64 - 1, -(-count // 8), dtype=np.uint64, endpoint=True)
    return words.view(np.uint8)[:count]


def bf16_bits(values: Array) -> Array:
    """Float32 rounded to nearest even; no NaN comes here."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Encoding(Protocol):
    """How a linear layer's weight [rows, cols] is stored."""

    @property
    def dense_dtype(self) -> str:
        """Of everything that is not quantised."""

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        """The tensors of the layer called `base`, in file order."""

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        """config.json's quantization_config, None for plain types; `ignore` names the modules that stay plain."""


def encode_floats(values: Array, dtype: str) -> Array:
    """Float32 in a published plain type, BF16 as its bits."""
    if dtype == "BF16":
        return bf16_bits(values)
    return values.astype({"F16": np.float16, "F32": np.float32}[dtype])


def draw_floats(rng: np.random.Generator, count: int, std: float, dtype: str) -> Array:
    """Codes of numbers of either sign, their size log-uniform over four octaves (kurtosis 2.8, a normal distribution has 3).

    All codes between two are drawn alike, which is a mask and an addition per weight.
    """
    kind, mantissa = _FLOATS[dtype]
    mask, sign = kind((4 << mantissa) - 1), kind(1 << (8 * kind().itemsize - 1))
    low = kind(_lowest_code(std, dtype))
    out: Array = raw_bytes(rng, count * kind().itemsize).view(kind)
    for first in range(0, count, _CHUNK):
        piece = out[first : first + _CHUNK]
        negative = piece & sign
        piece &= mask
        piece += low
        piece |= negative
    return out


_FLOATS: dict[str, tuple[Any, int]] = {
    "F8_E4M3": (np.uint8, 3), "BF16": (np.uint16, 7), "F16": (np.uint16, 10), "F32": (np.uint32, 23),
}  # fmt: skip  # the type of the codes, and mantissa bits


def decode_floats(codes: Array, dtype: str) -> Array:
    """float64 values of codes below the sign bit. Also for E4M3, whose code 127 is NaN and must not come."""
    if dtype == "F8_E4M3":
        exponent, mantissa = (codes >> 3).astype(np.float64), (codes & 7).astype(np.float64)
        return np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    if dtype == "BF16":
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return codes.view({"F16": np.float16, "F32": np.float32}[dtype]).astype(np.float64)


def octaves_rms(low: int, dtype: str) -> float:
    """Root mean square of the codes that `draw_floats` takes from `low` on."""
    kind, mantissa = _FLOATS[dtype]
    codes = low + np.arange(0, 4 << mantissa, max(1, (4 << mantissa) // 512))
    return float(np.sqrt((decode_floats(codes.astype(kind), dtype) ** 2).mean()))


@functools.cache
def _lowest_code(std: float, dtype: str) -> int:
    _, mantissa = _FLOATS[dtype]
    top = {"F8_E4M3": 0x7F, "BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}[dtype]  # the first code that is no number
    low, high = 0, top - (4 << mantissa)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if octaves_rms(middle, dtype) >= std else (middle + 1, high)
    return low


@dataclass(frozen=True)
class Plain:
    dense_dtype: str  # BF16, F16 or F32

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        spec = TensorSpec(f"{base}.weight", self.dense_dtype, (rows, cols))
        return [(spec, lambda: draw_floats(generator(seed, spec.name), rows * cols, std, self.dense_dtype))]

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        return None


@dataclass(frozen=True)
class Fp8Block:
    """Source: the FP8 releases of DeepSeek-V3 and Qwen3 (scales F32 there, BF16 here); weight = code * weight_scale_inv."""

    block: int = 128
    scale_dtype: str = "BF16"
    dense_dtype: str = "BF16"

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        blocks = (-(-rows // self.block), -(-cols // self.block))
        codes, scales = (
            TensorSpec(f"{base}.weight", "F8_E4M3", (rows, cols)),
            TensorSpec(f"{base}.weight_scale_inv", self.scale_dtype, blocks),
        )

        def draw_codes() -> Array:
            return draw_floats(generator(seed, codes.name), rows * cols, _E4M3_STD, "F8_E4M3")

        def draw_scales() -> Array:  # within a factor of 2, so that a wrong block moves the result
            values = generator(seed, scales.name).uniform(0.65, 1.3, blocks)
            return encode_floats((values * std / _E4M3_STD).astype(np.float32), self.scale_dtype)

        return [(codes, draw_codes), (scales, draw_scales)]

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        return {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [self.block, self.block], "modules_to_not_convert": ignore,
        }  # fmt: skip


_E4M3_STD = octaves_rms(0x5E, "F8_E4M3")  # codes up to 0x7D: 416 of the 448 that the type holds


def draw_e8m0(rng: np.random.Generator, count: int, std: float) -> Array:
    """Scales of E2M1 blocks: two neighbouring powers of two, mixed so that the weights' variance is exact."""
    wanted = (std / _E2M1_RMS) ** 2
    high = int(np.ceil(np.log2(wanted) / 2))
    share = (wanted - 4.0 ** (high - 1)) / (4.0**high - 4.0 ** (high - 1))
    return (126 + high + (raw_bytes(rng, count) < round(256 * share))).astype(np.uint8)


@dataclass(frozen=True)
class Mxfp4:
    """E2M1 pairs, even column in the low nibble, and an E8M0 scale per 32. Source: OCP Microscaling Formats 1.0.

    Names of AMD Quark's releases; gpt-oss has its own layout.
    """

    dense_dtype: str = "BF16"

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        codes = TensorSpec(f"{base}.weight", "U8", (rows, cols // 2))
        scales = TensorSpec(f"{base}.weight_scale", "U8", (rows, cols // 32))
        return [
            (codes, lambda: raw_bytes(generator(seed, codes.name), codes.num_bytes)),
            (scales, lambda: draw_e8m0(generator(seed, scales.name), scales.num_bytes, std)),
        ]

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        weight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0"}
        return {
            "quant_method": "quark", "quant_mode": "eager_mode", "exclude": ignore, "layer_quant_config": {},
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
            "global_quant_config": {"weight": weight | {"is_dynamic": False}, "input_tensors": weight | {"is_dynamic": True}},
        }  # fmt: skip


@dataclass(frozen=True)
class Nvfp4:
    """ModelOpt: E2M1 pairs, an E4M3 scale per 16, one F32 scale per matrix; weight = code * weight_scale * weight_scale_2."""

    dense_dtype: str = "BF16"

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        codes = TensorSpec(f"{base}.weight", "U8", (rows, cols // 2))
        scales = TensorSpec(f"{base}.weight_scale", "F8_E4M3", (rows, cols // 16))
        global_scale, input_scale = (
            TensorSpec(f"{base}.weight_scale_2", "F32", ()),
            TensorSpec(f"{base}.input_scale", "F32", ()),
        )
        first, last = 0x60, 0x7E  # 32 to 448, the range in which published scales lie
        rms = float(np.sqrt((decode_floats(np.arange(first, last + 1), "F8_E4M3") ** 2).mean()))
        return [
            (codes, lambda: raw_bytes(generator(seed, codes.name), codes.num_bytes)),
            (
                scales,
                lambda: generator(seed, scales.name).integers(first, last, scales.num_bytes, dtype=np.uint8, endpoint=True),
            ),
            (global_scale, lambda: np.array([std / _E2M1_RMS / rms], dtype=np.float32)),
            (input_scale, lambda: np.array([4.0 / (6 * 448)], dtype=np.float32)),
        ]

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        side = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
        return {
            "quant_method": "modelopt", "quant_algo": "NVFP4", "producer": {"name": "modelopt", "version": "0.39.0"},
            "config_groups": {"group_0": {"input_activations": side, "weights": side, "targets": ["Linear"]}}, "ignore": ignore,
        }  # fmt: skip


@dataclass(frozen=True)
class Int4Packed:
    """compressed-tensors `pack-quantized`, symmetric: eight columns to an int32, lowest first, each stored plus 8."""

    group: int = 128
    dense_dtype: str = "BF16"

    def parts(self, base: str, rows: int, cols: int, std: float, seed: int) -> list[Part]:
        codes = TensorSpec(f"{base}.weight_packed", "I32", (rows, cols // 8))
        scales = TensorSpec(f"{base}.weight_scale", "BF16", (rows, cols // self.group))
        shape = TensorSpec(f"{base}.weight_shape", "I64", (2,))
        mean = float(np.sqrt((1.5**3 - 0.5**3) / 3))  # root mean square of the scales' factors below

        def draw_scales() -> Array:
            values = generator(seed, scales.name).uniform(0.5, 1.5, scales.shape)
            return bf16_bits(values * std / _INT4_RMS / mean)

        return [
            (codes, lambda: raw_bytes(generator(seed, codes.name), codes.num_bytes)),
            (scales, draw_scales),
            (shape, lambda: np.array([rows, cols], dtype=np.int64)),
        ]

    def quantization(self, ignore: list[str]) -> dict[str, Any] | None:
        weights = {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": self.group, "dynamic": False,
        }  # fmt: skip
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": "pack-quantized"}
        return {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ignore, "kv_cache_scheme": None,
        }  # fmt: skip


ENCODINGS: dict[str, Encoding] = {
    "bf16": Plain("BF16"),
    "f16": Plain("F16"),
    "f32": Plain("F32"),
    "f8_e4m3": Fp8Block(),
    "mxfp4": Mxfp4(),
    "nvfp4": Nvfp4(),
    "int4": Int4Packed(),
}
