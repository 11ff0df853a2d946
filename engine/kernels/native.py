"""The kernels of the shared library as functions over tensors. Knows shapes and pointers, no arithmetic.

Nothing is copied but what is not fp32 and contiguous. Every tensor that a call names must live until it returns, those of an
`ExpertTable` as long as the table, those of an `AttentionSpec` as long as what is made of it.
"""

from ctypes import byref, c_uint64, c_void_p
from ctypes import pointer as to
from pathlib import Path

import torch
from torch.nn.functional import silu

from engine.errors import EngineError
from engine.kernels.abi import (
    FAST,
    ISAS,
    LIBRARY,
    RENORMALISE,
    AttentionCall,
    BlockCall,
    DeltaBlockCall,
    DeltaCall,
    Expert,
    Matrix,
    MoeCall,
    RouteCall,
    descriptor,
    load,
    pointer,
)  # fmt: skip
from engine.kernels.delta import ComposedDelta, DeltaBlock, DeltaBlockSpec, States
from engine.kernels.kept import dim_of
from engine.kernels.spec import AttentionBlock, AttentionSpec, FeedForward, Rotation, Router, Start
from engine.kernels.weights import SILU, ExpertMath, Format, Weight, plain

_SPIN_US = 100  # longer than a decode layer's pauses between two calls, shorter than anybody notices
_OUT_OF_MEMORY, _BAD_SCALE = 10, 11  # of stoker_status
_KV_TYPES = {torch.float32: int(Format.F32), torch.bfloat16: int(Format.BF16), torch.uint8: 100}  # STOKER_KV_Q8


class ExpertTable:
    """Where the experts in an arena's slots lie, so that a call names them by slot. `set` whenever a slot gets new content.

    `words` int64 [slots, W] are the descriptors in the memory of a device, where they are kept there.
    """

    words: torch.Tensor | None = None

    def __init__(self, num_slots: int) -> None:
        self.entries = (Expert * num_slots)()
        self._held: list[tuple[Weight | None, Weight, Weight] | None] = [None] * num_slots

    def __len__(self) -> int:
        return len(self._held)

    def set(self, slot: int, gate: Weight | None, up: Weight, down: Weight) -> None:
        """The expert now in `slot`; `gate` is None for activations without one."""
        entry = self.entries[slot]
        entry.gate = Matrix() if gate is None else descriptor(gate)
        entry.up, entry.down = descriptor(up), descriptor(down)
        self._held[slot] = (gate, up, down)

    def get(self, slot: int) -> tuple[Weight | None, Weight, Weight]:
        held = self._held[slot]
        assert held is not None, f"slot {slot} holds no expert"
        return held


class Native:
    """The kernels with a thread pool of their own. May be called from any thread; calls take turns."""

    def __init__(self, threads: int, isa: str = "best", fast: bool = True, library: Path = LIBRARY) -> None:
        """`fast` lets batches round activations to bf16. Raises `EngineError` when the library or the ISA is missing."""
        self.lib = load(library)
        self.is_fast = fast
        pool = c_void_p()
        status = self.lib.stoker_pool_create(threads, ISAS.index(isa), _SPIN_US, byref(pool))
        if status:
            raise EngineError("kernels.unavailable", f"The {isa} kernels cannot start: {self._text(status)}.", "")
        self.pool = pool
        self.threads = threads
        self.isa: str = self.lib.stoker_pool_isa(pool).decode()
        self._no_experts = ExpertTable(1)

    def close(self) -> None:
        """Ends the threads. No call may be running."""
        pool, self.pool = self.pool, c_void_p()
        self.lib.stoker_pool_destroy(pool)

    def __del__(self) -> None:
        if getattr(self, "pool", None):
            self.close()

    def check(self, weight: Weight, name: str) -> None:
        """Refuses by `name` a weight from a checkpoint that the kernels cannot take. Raises `EngineError`."""
        status = self.lib.stoker_check(byref(descriptor(weight)))
        if status:
            raise EngineError(
                "checkpoint.layout",
                f"Tensor {name} ({weight.format.name}, {weight.rows} x {weight.cols}) cannot be used: {self._text(status)}.",
                "Download the model again, or get another release of it.",
            )

    def has_finite_scales(self, table: ExpertTable, slot: int) -> bool:
        """Whether every scale of the expert in `slot` is a finite number: reads them all, on this thread."""
        status = self.lib.stoker_check_scales(byref(table.entries[slot]))
        if status == _BAD_SCALE:
            return False
        self.must(status)
        return True

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight, fast: bool | None = None) -> torch.Tensor:
        """x [T, in] fp32 times weight [out, in], giving fp32 [T, out]; a `Weight` brings its bias."""
        matrix = plain(weight) if isinstance(weight, torch.Tensor) else weight
        x = _operand(x)
        assert x.shape[1] == matrix.cols, f"{tuple(x.shape)} times {matrix.shape}"
        y = torch.empty(x.shape[0], matrix.rows)
        if x.shape[0]:
            flags = FAST if (self.is_fast if fast is None else fast) else 0
            self.must(
                self.lib.stoker_linear(self.pool, x.data_ptr(), x.shape[0], byref(descriptor(matrix)), flags, y.data_ptr())
            )
        return y

    def swiglu(self, gate: Weight, up: Weight, down: Weight) -> FeedForward:
        """down(silu(gate x) * up x) as a function: an expert that every token goes through."""
        if not _is_alike(gate, up):  # one pass over both wants one format
            return lambda x: self.linear(silu(self.linear(x, gate)) * self.linear(x, up), down)
        table = ExpertTable(1)
        table.set(0, gate, up, down)

        def feed_forward(x: torch.Tensor) -> torch.Tensor:
            ids, outputs = torch.zeros(len(x), 1, dtype=torch.int32), torch.empty(len(x), 1, x.shape[1])
            self.moe(table, x, ids, outputs)
            return outputs[:, 0]

        return feed_forward

    def moe(
        self,
        table: ExpertTable,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
        math: ExpertMath = SILU,
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
        call = MoeCall(
            tokens, hidden, intermediate, top_k, x.data_ptr(), slots.data_ptr(), table.entries, len(table),
            math.activation, FAST if self.is_fast else 0, math.alpha, math.limit,
            pointer(weights), pointer(outputs), pointer(y),
        )  # fmt: skip
        self.must(self.lib.stoker_moe(self.pool, byref(call)))
        return y

    def combine(self, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The weighted sum [T, H] of outputs [T, k, H] that several calls have filled, as the last of them would give it."""
        none = torch.full(weights.shape, -1, dtype=torch.int32)
        y = self.moe(self._no_experts, outputs[:, 0], none, outputs, weights)
        assert y is not None, "there are weights"
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
        row: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Causal attention of the last T positions: q [T, Hq, D], keys and values [Hkv, S, D] as `engine.kernels.kept` has
        them, to [T, Hq, Dv]. With `row` int64 [1] the one token of q is in that row, and does not see those behind it."""
        assert row is None, "here shapes may differ from token to token"
        assert q.dtype == torch.float32, "q: fp32"
        assert keys.dtype == values.dtype and keys.dtype in _KV_TYPES, "keys, values: kept alike"  # noqa: PT018
        assert q.stride(2) == keys.stride(2) == values.stride(2) == 1, "q, keys, values: dense in their last dimension"
        assert keys.shape[:2] == values.shape[:2], "keys, values: [Hkv, S, D]"
        assert q.shape[2] == dim_of(keys), "q, keys: one head size"
        tokens, heads, dim = q.shape
        (kv_heads, length), value_dim = values.shape[:2], dim_of(values)
        assert heads % kv_heads == 0, f"{heads} heads over {kv_heads}"
        assert length >= tokens, f"{tokens} tokens of {length}"
        y = torch.empty(tokens, heads, value_dim)
        if sinks is not None:
            sinks = _operand(sinks)
            assert sinks.shape == (heads,), "sinks: [Hq]"
        call = AttentionCall(
            tokens, length, heads, kv_heads, dim, value_dim, q.data_ptr(), q.stride(0), q.stride(1),
            keys.data_ptr(), values.data_ptr(), keys.stride(0), keys.stride(1), values.stride(0), values.stride(1),
            _KV_TYPES[keys.dtype], 0, window or 0,
            dim**-0.5 if scale is None else scale, softcap, pointer(sinks), y.data_ptr(),
        )  # fmt: skip
        self.must(self.lib.stoker_attention(self.pool, byref(call)))
        return y

    def attention_block(self, spec: AttentionSpec) -> AttentionBlock:
        """One layer's attention with its norms and cache as a function."""
        return _BoundAttention(self, spec)

    def delta_block(self, spec: DeltaBlockSpec) -> DeltaBlock:
        """One layer's gated delta rule with its norms and products as a function."""
        return _BoundDelta(self, spec)

    def router(self, weight: Weight, top_k: int, *, renormalise: bool) -> Router:
        """One layer's router as a function: the k largest probabilities, over all experts or over the chosen."""
        return _BoundRouter(self, weight, top_k, RENORMALISE if renormalise else 0)

    def read(self, memory: torch.Tensor) -> int:
        """Reads every byte of a contiguous tensor once with all threads: timed, the ceiling of what a kernel can do."""
        total = c_uint64()
        self.must(self.lib.stoker_read(self.pool, memory.data_ptr(), memory.nbytes, byref(total)))
        return total.value

    def must(self, status: int) -> None:
        """Raises what a call's status says."""
        if status == _OUT_OF_MEMORY:
            raise EngineError("memory.refused", "The system refused memory for a computation.", "Close other programs.")
        assert status == 0, f"kernel call refused: {self._text(status)}"

    def _text(self, status: int) -> str:
        text: bytes = self.lib.stoker_error_text(status)
        return text.decode()


class _BoundAttention:
    """An `AttentionBlock`: the call's constant part is made once, a pass fills in the rest."""

    def __init__(self, native: Native, spec: AttentionSpec) -> None:
        self._native, self._spec = native, spec  # the spec keeps the tensors that the call names
        q, k, v, o = (to(descriptor(weight)) for weight in (spec.q, spec.k, spec.v, spec.o))
        self._call = BlockCall(
            hidden=spec.o.rows, heads=spec.num_heads, kv_heads=spec.num_kv_heads, head_dim=spec.head_dim,
            input_norm=pointer(spec.input_norm), post_norm=pointer(spec.post_norm),
            q_norm=pointer(spec.q_norm), k_norm=pointer(spec.k_norm), q=q, k=k, v=v, o=o,
            flags=FAST if native.is_fast else 0, window=spec.window or 0,
            eps=spec.eps, scale=spec.scale, softcap=spec.softcap, sinks=pointer(spec.sinks),
        )  # fmt: skip
        self._run = native.lib.stoker_attention_block

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start
    ) -> torch.Tensor:
        assert isinstance(start, int), "here shapes may differ from token to token"
        cosine, sine = rotation
        tokens, call = len(x), self._call
        assert x.dtype == cosine.dtype == torch.float32, "x, rotation: fp32"
        assert start + tokens <= keys.shape[1], f"{start + tokens} tokens do not fit a KV cache of {keys.shape[1]}"
        normed = torch.empty_like(x)
        call.tokens, call.rotary_dim, call.length = tokens, 2 * cosine.shape[1], start + tokens
        call.x, call.cosine, call.sine, call.normed = x.data_ptr(), cosine.data_ptr(), sine.data_ptr(), normed.data_ptr()
        call.keys, call.values, call.kv_type = keys.data_ptr(), values.data_ptr(), _KV_TYPES[keys.dtype]
        call.kv_head_stride, call.kv_token_stride, _ = keys.stride()
        self._native.must(self._run(self._native.pool, byref(call)))
        return normed


class _BoundDelta:
    """A `DeltaBlock`: a single token in one call, more of them by torch."""

    def __init__(self, native: Native, spec: DeltaBlockSpec) -> None:
        self._native, self._spec, self._many = native, spec, ComposedDelta(native, spec)
        rule = spec.rule
        self._call = DeltaBlockCall(
            rule=DeltaCall(
                key_heads=rule.key_heads, value_heads=rule.value_heads, key_dim=rule.key_dim, value_dim=rule.value_dim,
                width=len(rule.taps), taps=pointer(rule.taps), speed=pointer(rule.speed), bias=pointer(rule.bias),
                norm=pointer(rule.norm), eps=rule.eps,
            ),
            hidden=spec.out.rows, input_norm=pointer(spec.input_norm), post_norm=pointer(spec.post_norm),
            out=to(descriptor(spec.out)), flags=FAST if native.is_fast else 0,
        )  # fmt: skip
        for index, weight in enumerate(spec.inputs):
            self._call.inputs[index] = to(descriptor(weight))

    def __call__(self, x: torch.Tensor, now: States, following: States) -> torch.Tensor:
        if len(x) != 1:
            return self._many(x, now, following)
        call, normed = self._call, torch.empty_like(x)
        call.x, call.normed = x.data_ptr(), normed.data_ptr()
        rule = call.rule
        rule.past, rule.memory = now[0].data_ptr(), now[1].data_ptr()
        rule.following, rule.kept = following[0].data_ptr(), following[1].data_ptr()
        self._native.must(self._native.lib.stoker_delta_block(self._native.pool, byref(call)))
        return normed


class _BoundRouter:
    """A `Router`."""

    def __init__(self, native: Native, weight: Weight, top_k: int, flags: int) -> None:
        self._native, self._weight, self._top_k = native, weight, top_k
        self._call = RouteCall(top_k=top_k, router=to(descriptor(weight)), flags=flags)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, call = _operand(x), self._call
        ids, weights = torch.empty(len(x), self._top_k, dtype=torch.int32), torch.empty(len(x), self._top_k)
        call.tokens, call.x, call.ids, call.weights = len(x), x.data_ptr(), ids.data_ptr(), weights.data_ptr()
        self._native.must(self._native.lib.stoker_route(self._native.pool, byref(call)))
        return ids, weights


def _is_alike(one: Weight, other: Weight) -> bool:
    """As the library asks it of gate and up."""
    first, second = (
        (weight.format, weight.scale_type, weight.block_rows, weight.block_cols, weight.element_step, weight.zeros is None)
        for weight in (one, other)
    )
    return first == second


def _operand(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32).contiguous()
