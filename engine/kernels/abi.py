"""The C boundary of cpu/stoker_kernels.h in ctypes: structures, the library, descriptors of weights. Knows pointers alone."""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch

from engine.errors import EngineError
from engine.kernels.weights import ScaleType, Weight

ABI_VERSION = 5
ISAS = ("best", "portable", "avx2", "avx512", "avx512_bf16", "neon")  # by number
LIBRARY = Path(__file__).parent / ("stoker_kernels" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))
FAST, RENORMALISE = 1, 2
_SCALE_OF_DTYPE = {torch.float32: ScaleType.F32, torch.bfloat16: ScaleType.BF16, torch.float16: ScaleType.F16}


class Matrix(Structure):
    _fields_ = [
        ("format", c_int32), ("scale_type", c_int32), ("rows", c_int64), ("cols", c_int64),
        ("data", c_void_p), ("data_bytes", c_int64), ("row_stride", c_int64),
        ("scales", c_void_p), ("scale_bytes", c_int64), ("scale_row_stride", c_int64), ("scale_col_stride", c_int64),
        ("block_rows", c_int64), ("block_cols", c_int64),
        ("zeros", c_void_p), ("zero_bytes", c_int64), ("zero_stride", c_int64),
        ("bias", c_void_p), ("bias_stride", c_int64), ("bias_type", c_int32),
        ("global_scale", c_float), ("zero_offset", c_int32), ("element_step", c_int32),
    ]  # fmt: skip


class Expert(Structure):
    _fields_ = [("gate", Matrix), ("up", Matrix), ("down", Matrix)]


class MoeCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("hidden", c_int64), ("intermediate", c_int64), ("top_k", c_int64),
        ("x", c_void_p), ("ids", c_void_p), ("experts", POINTER(Expert)), ("num_experts", c_int64),
        ("activation", c_int32), ("flags", c_int32), ("alpha", c_float), ("limit", c_float),
        ("weights", c_void_p), ("outputs", c_void_p), ("y", c_void_p),
    ]  # fmt: skip


class AttentionCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("length", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64),
        ("value_dim", c_int64), ("q", c_void_p), ("q_token_stride", c_int64), ("q_head_stride", c_int64),
        ("keys", c_void_p), ("values", c_void_p), ("key_head_stride", c_int64), ("key_token_stride", c_int64),
        ("value_head_stride", c_int64), ("value_token_stride", c_int64), ("kv_type", c_int32), ("reserved", c_int32),
        ("window", c_int64), ("scale", c_float), ("softcap", c_float), ("sinks", c_void_p), ("y", c_void_p),
    ]  # fmt: skip


class BlockCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("hidden", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64),
        ("rotary_dim", c_int64), ("x", c_void_p), ("input_norm", c_void_p), ("post_norm", c_void_p),
        ("q_norm", c_void_p), ("k_norm", c_void_p), ("cosine", c_void_p), ("sine", c_void_p),
        ("q", POINTER(Matrix)), ("k", POINTER(Matrix)), ("v", POINTER(Matrix)), ("o", POINTER(Matrix)),
        ("keys", c_void_p), ("values", c_void_p), ("kv_head_stride", c_int64), ("kv_token_stride", c_int64),
        ("length", c_int64), ("kv_type", c_int32), ("flags", c_int32), ("window", c_int64),
        ("eps", c_float), ("scale", c_float), ("softcap", c_float), ("reserved", c_float),
        ("sinks", c_void_p), ("normed", c_void_p),
    ]  # fmt: skip


class DeltaCall(Structure):
    _fields_ = [
        ("key_heads", c_int64), ("value_heads", c_int64), ("key_dim", c_int64), ("value_dim", c_int64), ("width", c_int64),
        ("mixed", c_void_p), ("past", c_void_p), ("taps", c_void_p), ("gate", c_void_p), ("rate", c_void_p),
        ("decay", c_void_p), ("speed", c_void_p), ("bias", c_void_p), ("norm", c_void_p), ("memory", c_void_p),
        ("following", c_void_p), ("kept", c_void_p), ("y", c_void_p), ("eps", c_float), ("reserved", c_int32),
    ]  # fmt: skip


class DeltaBlockCall(Structure):
    _fields_ = [
        ("rule", DeltaCall), ("hidden", c_int64), ("x", c_void_p), ("input_norm", c_void_p), ("post_norm", c_void_p),
        ("inputs", POINTER(Matrix) * 4), ("out", POINTER(Matrix)), ("normed", c_void_p), ("flags", c_int32),
        ("reserved", c_int32),
    ]  # fmt: skip


class RouteCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("top_k", c_int64), ("x", c_void_p), ("router", POINTER(Matrix)), ("flags", c_int32),
        ("reserved", c_int32), ("ids", c_void_p), ("weights", c_void_p),
    ]  # fmt: skip


def available_isas(library: Path = LIBRARY) -> Sequence[str]:
    """The tiers that this machine can run, slowest first."""
    lib = load(library)
    return [name for number, name in enumerate(ISAS) if number and lib.stoker_isa_available(number)]


def load(library: Path) -> ctypes.CDLL:
    """Raises `EngineError` for a library that is absent, not loadable or of another version."""
    if not library.is_file():
        raise EngineError(
            "kernels.not_built",
            f"The native kernels are not built: {library.name} is absent.",
            "Run python -m engine.kernels.build.",
        )
    try:
        lib = ctypes.CDLL(str(library))
        version = lib.stoker_abi_version()
    except (OSError, AttributeError) as error:
        raise EngineError(
            "kernels.unloadable", f"The native kernels cannot be loaded: {error}.", "Build them again."
        ) from error
    if version != ABI_VERSION:
        raise EngineError("kernels.stale", f"{library.name} has interface {version}, not {ABI_VERSION}.", "Build it again.")
    lib.stoker_error_text.restype = lib.stoker_pool_isa.restype = c_char_p
    lib.stoker_pool_create.argtypes = [c_int32, c_int32, c_int32, POINTER(c_void_p)]
    lib.stoker_pool_destroy.argtypes = lib.stoker_pool_isa.argtypes = [c_void_p]
    lib.stoker_pool_destroy.restype = None
    lib.stoker_check.argtypes = [POINTER(Matrix)]
    lib.stoker_check_scales.argtypes = [POINTER(Expert)]
    lib.stoker_linear.argtypes = [c_void_p, c_void_p, c_int64, POINTER(Matrix), c_int32, c_void_p]
    lib.stoker_moe.argtypes = [c_void_p, POINTER(MoeCall)]
    lib.stoker_attention.argtypes = [c_void_p, POINTER(AttentionCall)]
    lib.stoker_attention_block.argtypes = [c_void_p, POINTER(BlockCall)]
    lib.stoker_delta_block.argtypes = [c_void_p, POINTER(DeltaBlockCall)]
    lib.stoker_route.argtypes = [c_void_p, POINTER(RouteCall)]
    lib.stoker_read.argtypes = [c_void_p, c_void_p, c_int64, POINTER(c_uint64)]
    return lib


def pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def descriptor(weight: Weight) -> Matrix:
    """Valid as long as the weight's tensors."""
    scales, zeros, bias = weight.scales, weight.zeros, weight.bias
    assert bias is None or bias.shape == (weight.rows,), f"bias {bias.shape if bias is not None else ()} of {weight.rows} rows"
    return Matrix(
        weight.format, weight.scale_type, weight.rows, weight.cols,
        weight.data.data_ptr(), weight.data.nbytes, weight.row_stride,
        pointer(scales), 0 if scales is None else scales.nbytes, weight.scale_row_stride, weight.scale_col_stride,
        weight.block_rows, weight.block_cols,
        pointer(zeros), 0 if zeros is None else zeros.nbytes, weight.zero_stride,
        pointer(bias), 0 if bias is None else bias.stride(0) * bias.itemsize,
        0 if bias is None else _SCALE_OF_DTYPE[bias.dtype],
        weight.global_scale, weight.zero_offset, weight.element_step,
    )  # fmt: skip
