"""Binds the shared library beside this file, cpu/stoker_kernels.h, by ctypes. Knows pointers and shapes, no arithmetic.

Callers pass torch tensors; nothing is copied but what is not fp32 and contiguous. Every tensor that a call names must live
until it returns, and those of an `ExpertTable` as long as the table.
"""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char_p, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

import torch

from engine.errors import EngineError
from engine.kernels.weights import Activation, Format, ScaleType, Weight, plain

ABI_VERSION = 1
ISAS = ("best", "portable", "avx2", "avx512", "avx512_bf16", "neon")  # by number
LIBRARY = Path(__file__).parent / ("stoker_kernels" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so"))
_SPIN_US = 100  # longer than a decode layer's pauses between two calls, shorter than anybody notices
_FAST = 1
_KV_DTYPES = [(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)]
_SCALE_OF_DTYPE = {torch.float32: ScaleType.F32, torch.bfloat16: ScaleType.BF16, torch.float16: ScaleType.F16}


class _Matrix(Structure):
    _fields_ = [
        ("format", c_int32), ("scale_type", c_int32), ("rows", c_int64), ("cols", c_int64),
        ("data", c_void_p), ("data_bytes", c_int64), ("row_stride", c_int64),
        ("scales", c_void_p), ("scale_bytes", c_int64), ("scale_row_stride", c_int64), ("scale_col_stride", c_int64),
        ("block_rows", c_int64), ("block_cols", c_int64),
        ("zeros", c_void_p), ("zero_bytes", c_int64), ("zero_stride", c_int64),
        ("bias", c_void_p), ("bias_stride", c_int64), ("bias_type", c_int32),
        ("global_scale", c_float), ("zero_offset", c_int32), ("reserved", c_int32),
    ]  # fmt: skip


class _Expert(Structure):
    _fields_ = [("gate", _Matrix), ("up", _Matrix), ("down", _Matrix)]


class _MoeCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("hidden", c_int64), ("intermediate", c_int64), ("top_k", c_int64),
        ("x", c_void_p), ("ids", c_void_p), ("experts", POINTER(_Expert)), ("num_experts", c_int64),
        ("activation", c_int32), ("flags", c_int32), ("alpha", c_float), ("limit", c_float),
        ("weights", c_void_p), ("outputs", c_void_p), ("y", c_void_p),
    ]  # fmt: skip


class _AttentionCall(Structure):
    _fields_ = [
        ("tokens", c_int64), ("length", c_int64), ("heads", c_int64), ("kv_heads", c_int64), ("head_dim", c_int64),
        ("value_dim", c_int64), ("q", c_void_p), ("q_token_stride", c_int64), ("q_head_stride", c_int64),
        ("keys", c_void_p), ("values", c_void_p), ("key_head_stride", c_int64), ("key_token_stride", c_int64),
        ("value_head_stride", c_int64), ("value_token_stride", c_int64), ("kv_type", c_int32), ("reserved", c_int32),
        ("window", c_int64), ("scale", c_float), ("softcap", c_float), ("sinks", c_void_p), ("y", c_void_p),
    ]  # fmt: skip


class ExpertTable:
    """Where the experts in an arena's slots lie, so that a call names them by slot. `set` whenever a slot gets new content."""

    def __init__(self, num_slots: int) -> None:
        self.entries = (_Expert * num_slots)()
        self._held: list[tuple[Weight | None, Weight, Weight] | None] = [None] * num_slots

    def __len__(self) -> int:
        return len(self._held)

    def set(self, slot: int, gate: Weight | None, up: Weight, down: Weight) -> None:
        """The expert now in `slot`; `gate` is None for activations without one."""
        entry = self.entries[slot]
        entry.gate = _Matrix() if gate is None else _descriptor(gate)
        entry.up, entry.down = _descriptor(up), _descriptor(down)
        self._held[slot] = (gate, up, down)

    def get(self, slot: int) -> tuple[Weight | None, Weight, Weight]:
        held = self._held[slot]
        assert held is not None, f"slot {slot} holds no expert"
        return held


class Native:
    """The kernels with a thread pool of their own. May be called from any thread; calls take turns."""

    def __init__(self, threads: int, isa: str = "best", fast: bool = True, library: Path = LIBRARY) -> None:
        """`fast` lets batches round activations to bf16. Raises `EngineError` when the library or the ISA is missing."""
        self._lib = _load(library)
        self._fast = fast
        pool = c_void_p()
        status = self._lib.stoker_pool_create(threads, ISAS.index(isa), _SPIN_US, byref(pool))
        if status:
            raise EngineError("kernels.unavailable", f"The {isa} kernels cannot start: {self._text(status)}.", "")
        self._pool = pool
        self.threads = threads
        self.isa: str = self._lib.stoker_pool_isa(pool).decode()

    def close(self) -> None:
        """Ends the threads. No call may be running."""
        pool, self._pool = self._pool, c_void_p()
        self._lib.stoker_pool_destroy(pool)

    def __del__(self) -> None:
        if getattr(self, "_pool", None):
            self.close()

    def check(self, weight: Weight, name: str) -> None:
        """Refuses by `name` a weight from a checkpoint that the kernels cannot take. Raises `EngineError`."""
        status = self._lib.stoker_check(byref(_descriptor(weight)))
        if status:
            raise EngineError(
                "checkpoint.layout",
                f"Tensor {name} ({weight.format.name}, {weight.rows} x {weight.cols}) cannot be used: {self._text(status)}.",
                "Download the model again, or get another release of it.",
            )

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight, fast: bool | None = None) -> torch.Tensor:
        """x [T, in] fp32 times weight [out, in], giving fp32 [T, out]; a `Weight` brings its bias."""
        matrix = plain(weight) if isinstance(weight, torch.Tensor) else weight
        x = _operand(x)
        assert x.shape[1] == matrix.cols, f"{tuple(x.shape)} times {matrix.shape}"
        y = torch.empty(x.shape[0], matrix.rows)
        if x.shape[0]:
            flags = _FAST if (self._fast if fast is None else fast) else 0
            self._must(
                self._lib.stoker_linear(self._pool, x.data_ptr(), x.shape[0], byref(_descriptor(matrix)), flags, y.data_ptr())
            )
        return y

    def swiglu(
        self, x: torch.Tensor, gate: torch.Tensor | Weight, up: torch.Tensor | Weight, down: torch.Tensor | Weight
    ) -> torch.Tensor:
        """down(silu(gate x) * up x): x [T, H] to [T, H]."""
        table = ExpertTable(1)
        table.set(0, *(plain(part) if isinstance(part, torch.Tensor) else part for part in (gate, up, down)))
        ids, outputs = torch.zeros(len(x), 1, dtype=torch.int32), torch.empty(len(x), 1, x.shape[1])
        self.moe(table, x, ids, outputs)
        return outputs[:, 0]

    def moe(
        self,
        table: ExpertTable,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
        *,
        activation: Activation = Activation.SILU,
        alpha: float = 1.702,
        limit: float = 7.0,
    ) -> torch.Tensor | None:
        """The experts of one layer: x [T, H], slots int32 [T, k] into `table`, -1 for what another call computes.

        Fills the rows of outputs [T, k, H] that `slots` names. With `weights` [T, k] it returns their sum with all of
        `outputs`, in routing order: [T, H]. `outputs` may be None when this call computes every rank.
        """
        x = _operand(x)
        tokens, hidden = x.shape
        assert slots.dtype == torch.int32, "slots: int32"
        assert slots.is_contiguous(), "slots: contiguous"
        assert slots.shape[0] == tokens, "slots: [T, k]"
        top_k = slots.shape[1]
        assert outputs is None or (outputs.shape == (tokens, top_k, hidden) and outputs.is_contiguous()), "outputs: [T, k, H]"
        assert outputs is None or outputs.dtype == torch.float32, "outputs: fp32"
        y = None
        if weights is not None:
            weights = _operand(weights)
            assert weights.shape == slots.shape, "weights: [T, k]"
            y = torch.empty(tokens, hidden)
        if tokens == 0:
            return y
        first = next((expert for expert in slots.flatten().tolist() if expert >= 0), None)
        intermediate = 1 if first is None else table.entries[first].up.rows
        call = _MoeCall(
            tokens, hidden, intermediate, top_k, x.data_ptr(), slots.data_ptr(), table.entries, len(table),
            activation, _FAST if self._fast else 0, alpha, limit, _pointer(weights), _pointer(outputs), _pointer(y),
        )  # fmt: skip
        self._must(self._lib.stoker_moe(self._pool, byref(call)))
        return y

    def attention(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Causal attention of the last T positions: q [T, Hq, D], keys and values [Hkv, S, D] fp32 or bf16, to [T, Hq, Dv]."""
        assert q.dtype == torch.float32, "q: fp32"
        assert (keys.dtype, values.dtype) in _KV_DTYPES, "keys, values: both fp32 or both bf16"
        assert q.stride(2) == keys.stride(2) == values.stride(2) == 1, "q, keys, values: dense in their last dimension"
        assert keys.shape[:2] == values.shape[:2], "keys, values: [Hkv, S, D]"
        assert q.shape[2] == keys.shape[2], "q, keys: one head size"
        tokens, heads, dim = q.shape
        kv_heads, length, value_dim = values.shape
        assert heads % kv_heads == 0, f"{heads} heads over {kv_heads}"
        assert length >= tokens, f"{tokens} tokens of {length}"
        y = torch.empty(tokens, heads, value_dim)
        if sinks is not None:
            sinks = _operand(sinks)
            assert sinks.shape == (heads,), "sinks: [Hq]"
        call = _AttentionCall(
            tokens, length, heads, kv_heads, dim, value_dim, q.data_ptr(), q.stride(0), q.stride(1),
            keys.data_ptr(), values.data_ptr(), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            Format.F32 if keys.dtype == torch.float32 else Format.BF16, 0, window or 0,
            dim**-0.5 if scale is None else scale, softcap, _pointer(sinks), y.data_ptr(),
        )  # fmt: skip
        self._must(self._lib.stoker_attention(self._pool, byref(call)))
        return y

    def read(self, memory: torch.Tensor) -> int:
        """Reads every byte of a contiguous tensor once with all threads: timed, the ceiling of what a kernel can do."""
        total = c_uint64()
        self._must(self._lib.stoker_read(self._pool, memory.data_ptr(), memory.nbytes, byref(total)))
        return total.value

    def _must(self, status: int) -> None:
        if status == 10:  # STOKER_OUT_OF_MEMORY
            raise EngineError("memory.refused", "The system refused memory for a computation.", "Close other programs.")
        assert status == 0, f"kernel call refused: {self._text(status)}"

    def _text(self, status: int) -> str:
        text: bytes = self._lib.stoker_error_text(status)
        return text.decode()


def available_isas(library: Path = LIBRARY) -> Sequence[str]:
    """The tiers that this machine can run, slowest first."""
    lib = _load(library)
    return [name for number, name in enumerate(ISAS) if number and lib.stoker_isa_available(number)]


def _load(library: Path) -> ctypes.CDLL:
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
    lib.stoker_check.argtypes = [POINTER(_Matrix)]
    lib.stoker_linear.argtypes = [c_void_p, c_void_p, c_int64, POINTER(_Matrix), c_int32, c_void_p]
    lib.stoker_moe.argtypes = [c_void_p, POINTER(_MoeCall)]
    lib.stoker_attention.argtypes = [c_void_p, POINTER(_AttentionCall)]
    lib.stoker_read.argtypes = [c_void_p, c_void_p, c_int64, POINTER(c_uint64)]
    return lib


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _operand(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32).contiguous()


def _descriptor(weight: Weight) -> _Matrix:
    scales, zeros, bias = weight.scales, weight.zeros, weight.bias
    assert bias is None or bias.shape == (weight.rows,), f"bias {bias.shape if bias is not None else ()} of {weight.rows} rows"
    return _Matrix(
        weight.format, weight.scale_type, weight.rows, weight.cols,
        weight.data.data_ptr(), weight.data.nbytes, weight.row_stride,
        _pointer(scales), 0 if scales is None else scales.nbytes, weight.scale_row_stride, weight.scale_col_stride,
        weight.block_rows, weight.block_cols,
        _pointer(zeros), 0 if zeros is None else zeros.nbytes, weight.zero_stride,
        _pointer(bias), 0 if bias is None else bias.stride(0) * bias.itemsize,
        0 if bias is None else _SCALE_OF_DTYPE[bias.dtype],
        weight.global_scale, weight.zero_offset, 0,
    )  # fmt: skip
