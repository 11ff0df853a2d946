"""The arithmetic of a layer in torch: slow and surely right, and what every faster kernel is held against."""

import torch
import torch.nn.functional as F

from engine.kernels.delta import ComposedDelta, DeltaBlock, DeltaBlockSpec
from engine.kernels.kept import dim_of, keep, numbers, row_of, upto
from engine.kernels.native import ExpertTable
from engine.kernels.spec import AttentionBlock, AttentionSpec, FeedForward, Rotation, Router, Start
from engine.kernels.weights import SILU, Activation, ExpertMath, Format, ScaleType, Weight

_SCRATCH_BYTES = 4 << 20  # an upcast block that stays in the CPU's cache: 13 GB/s of bf16 read, against 1.5 without
MOST_LOGITS = 1 << 20  # that attention makes at once: 4 MiB, of which there are some copies
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # OCP Microscaling Formats 1.0, section 5.3.3
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # nibble of each row in its word: AutoAWQ packs rows 0 2 4 6 1 3 5 7
_DTYPES = {
    Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16, Format.E4M3: torch.float8_e4m3fn,
}  # fmt: skip
_SCALE_DTYPES = {
    ScaleType.F32: torch.float32, ScaleType.BF16: torch.bfloat16, ScaleType.F16: torch.float16,
    ScaleType.E8M0: torch.float8_e8m0fnu, ScaleType.E4M3: torch.float8_e4m3fn,
}  # fmt: skip


class Reference:
    """Matrix products in fp32 over weights as published. Not thread-safe: it owns its scratch memory."""

    isa = "reference"

    def __init__(self) -> None:
        self._scratch = torch.empty(_SCRATCH_BYTES // 4, dtype=torch.float32)

    def check(self, weight: Weight, name: str) -> None:
        """Takes whatever `engine.quant` describes."""

    def has_finite_scales(self, table: ExpertTable, slot: int) -> bool:
        """As `Native.has_finite_scales`."""
        scaled = [weight for weight in table.get(slot) if weight is not None and weight.scales is not None]
        return all(bool(_scales(weight).isfinite().all()) for weight in scaled)

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor:
        """x [T, in] fp32 times weight [out, in] of any supported type, giving fp32 [T, out]; a `Weight` brings its bias."""
        if isinstance(weight, Weight):
            return F.linear(x, dequantise(weight), None if weight.bias is None else weight.bias.float())
        if weight.dtype == torch.float32:
            return F.linear(x, weight)
        out_features, in_features = weight.shape
        rows = max(1, self._scratch.numel() // in_features)
        if rows * in_features > self._scratch.numel():
            self._scratch = torch.empty(in_features, dtype=torch.float32)
        if rows >= out_features:
            return x @ self._upcast(weight).t()
        y = x.new_empty(x.shape[0], out_features)
        for first in range(0, out_features, rows):
            y[:, first : first + rows] = x @ self._upcast(weight[first : first + rows]).t()
        return y

    def _upcast(self, weight: torch.Tensor) -> torch.Tensor:
        return self._scratch[: weight.numel()].view(weight.shape).copy_(weight)

    def swiglu(self, gate: Weight, up: Weight, down: Weight) -> FeedForward:
        """As `Native.swiglu`."""
        return lambda x: self.linear(F.silu(self.linear(x, gate)) * self.linear(x, up), down)

    def moe(
        self,
        table: ExpertTable,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
        math: ExpertMath = SILU,
    ) -> torch.Tensor | None:
        """As `Native.moe`."""
        if outputs is None:
            outputs = x.new_empty(*slots.shape, x.shape[1])
        for slot in set(slots.flatten().tolist()):
            if slot < 0:
                continue
            gate, up, down = table.get(slot)
            tokens, ranks = (slots == slot).nonzero(as_tuple=True)
            rows = x[tokens]
            mixed = activate(math, None if gate is None else self.linear(rows, gate), self.linear(rows, up))
            outputs[tokens, ranks] = self.linear(mixed, down)
        return None if weights is None else self.combine(outputs, weights)

    def combine(self, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As `Native.combine`."""
        return torch.einsum("tkh,tk->th", outputs, weights)

    def read(self, memory: torch.Tensor) -> int:
        """As `Native.read`."""
        return int(memory.sum())

    def attention_block(self, spec: AttentionSpec) -> AttentionBlock:
        """As `Native.attention_block`."""

        def block(x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start) -> torch.Tensor:
            normed = rms_norm(x, spec.input_norm, spec.eps)
            q, k, v = (self.linear(normed, weight).view(len(x), -1, spec.head_dim) for weight in (spec.q, spec.k, spec.v))
            if spec.q_norm is not None and spec.k_norm is not None:
                q, k = rms_norm(q, spec.q_norm, spec.eps), rms_norm(k, spec.k_norm, spec.eps)  # [T, heads, D]
            keep(keys, start, rotate(k, rotation))
            keep(values, start, v)
            seen = (upto(part, start, len(x)) for part in (keys, values))
            mixed = self.attention(
                rotate(q, rotation), *seen, scale=spec.scale, window=spec.window, sinks=spec.sinks, softcap=spec.softcap,
                row=row_of(start),
            )  # [T, Hq, D]  # fmt: skip
            x += self.linear(mixed.flatten(1), spec.o)
            return rms_norm(x, spec.post_norm, spec.eps)

        return block

    def delta_block(self, spec: DeltaBlockSpec) -> DeltaBlock:
        """As `Native.delta_block`."""
        return ComposedDelta(self, spec)

    def router(self, weight: Weight, top_k: int, *, renormalise: bool) -> Router:
        """As `Native.router`."""

        def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weights, ids = torch.topk(self.linear(x, weight).softmax(dim=-1), top_k, dim=-1)  # [T, k]
            return ids.int(), weights / weights.sum(dim=-1, keepdim=True) if renormalise else weights

        return route

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
        """As `Native.attention`. Many logits are made a part at a time: some heads, and some queries with what they see."""
        (count, heads, _), (kv_heads, total) = q.shape, keys.shape[:2]
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        if row is not None or count * heads * total <= MOST_LOGITS:
            return _attend(q, keys, values, scale, window, sinks, softcap, row)
        group = heads // kv_heads
        at_once = max(1, MOST_LOGITS // (group * total))
        y = q.new_empty(count, heads, dim_of(values))
        for head in range(kv_heads):
            own = slice(head * group, (head + 1) * group)
            seen, mixed = (numbers(part[head : head + 1]).to(q.dtype) for part in (keys, values))
            own_sinks = None if sinks is None else sinks[own]
            for first in range(0, count, at_once):
                last = min(count, first + at_once)
                end = total - count + last
                begin = 0 if window is None else max(0, total - count + first - window + 1)
                part = slice(begin, end)
                y[first:last, own] = _attend(
                    q[first:last, own], seen[:, part], mixed[:, part], scale, window, own_sinks, softcap
                )
        return y


def _attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: int | None, sinks: torch.Tensor | None,
    softcap: float, row: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    count, total, kv_heads = q.shape[0], keys.shape[1], keys.shape[0]
    keys, values = (numbers(part).to(q.dtype) for part in (keys, values))
    grouped = q.reshape(count, kv_heads, -1, q.shape[2])
    logits = torch.einsum("tkgd,ksd->kgts", grouped, keys).mul_(scale)  # [Hkv, Hq / Hkv, T, S]
    if softcap:
        logits.div_(softcap).tanh_().mul_(softcap)
    position = (torch.arange(total - count, total, device=q.device) if row is None else row)[:, None]
    seen = torch.arange(total, device=q.device)[None, :]
    mask = seen <= position if window is None else (seen <= position) & (seen > position - window)
    logits.masked_fill_(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.to(q.dtype).view(kv_heads, -1, 1, 1).expand(-1, -1, count, 1)
        logits = torch.cat((logits, column), dim=-1)
    logits.sub_(logits.amax(dim=-1, keepdim=True)).exp_()
    logits.div_(logits.sum(dim=-1, keepdim=True))  # softmax in place: they are most of a prompt's workspace
    mixed = torch.einsum("kgts,ksd->tkgd", logits[..., :total], values)
    return mixed.flatten(1, 2)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x [..., H] scaled to unit root mean square, times weight [H]. Source: Zhang and Sennrich 2019."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def rotate(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """The first R values of each head of x [T, heads, D] turned, halves against each other. Source: Su et al. 2021."""
    cosine, sine = (part[:, None] for part in rotation)
    half = cosine.shape[-1]
    low, high = x[..., :half], x[..., half : 2 * half]
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine, x[..., 2 * half :]), dim=-1)


def activate(math: ExpertMath, gate: torch.Tensor | None, up: torch.Tensor) -> torch.Tensor:
    """The function between an expert's matrices, as the models' own files write it."""
    kind, limit = math.activation, math.limit
    if kind == Activation.RELU2:
        return up.relu().square()
    assert gate is not None, f"{kind.name} needs a gate"
    if kind == Activation.GPT_OSS:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(math.alpha * gate)
    if kind == Activation.GELU_TANH:
        return F.gelu(gate, approximate="tanh") * up
    if kind == Activation.SILU_CLAMPED:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return F.silu(gate) * up


def dequantise(weight: Weight) -> torch.Tensor:
    """The matrix in fp32 [rows, cols]."""
    codes = _codes(weight)
    if weight.scales is None:
        return codes
    scales = _scales(weight)
    if weight.format >= Format.INT4:
        codes = codes - _spread(_zeros(weight, scales.shape[1]), weight)
    return codes * (_spread(scales, weight) * weight.global_scale)


def _scales(weight: Weight) -> torch.Tensor:
    """As fp32, one for each block of rows and columns."""
    assert weight.scales is not None, "a format with scales"
    rows, groups = -(-weight.rows // weight.block_rows), -(-weight.cols // weight.block_cols)
    dtype = _SCALE_DTYPES[weight.scale_type]
    scales = _strided(weight.scales, (rows, groups, dtype.itemsize), (weight.scale_row_stride, weight.scale_col_stride, 1))
    return scales.view(dtype)[..., 0].float()


def _spread(blocks: torch.Tensor, weight: Weight) -> torch.Tensor:
    tall = blocks.repeat_interleave(weight.block_rows, dim=0)[: weight.rows]
    return tall.repeat_interleave(weight.block_cols, dim=1)[:, : weight.cols]


def _strided(data: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A copy of uint8 `data` by byte strides, aligned for any view."""
    return data.as_strided(shape, strides, data.storage_offset()).clone(memory_format=torch.contiguous_format)


def _words(data: torch.Tensor, rows: int, cols: int, stride: int) -> torch.Tensor:
    """Little-endian int32 words [rows, cols]."""
    return _strided(data, (rows, cols * 4), (stride, 1)).view(torch.int32)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """The eight nibbles of int32 words [..., 8], lowest first."""
    return (words[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)) & 15


def _codes(weight: Weight) -> torch.Tensor:
    """What is stored, as fp32 [rows, cols], before zero point and scale."""
    rows, cols = weight.shape
    if weight.format in _DTYPES:
        dtype = _DTYPES[weight.format]
        if weight.element_step:  # stored by columns
            strides = (weight.element_step * dtype.itemsize, weight.row_stride, 1)
            return _strided(weight.data, (rows, cols, dtype.itemsize), strides).view(dtype)[..., 0].float()
        return _strided(weight.data, (rows, cols * dtype.itemsize), (weight.row_stride, 1)).view(dtype).float()
    if weight.format == Format.INT4_GPTQ:
        return _nibbles(_words(weight.data, cols // 8, rows, weight.row_stride)).permute(1, 0, 2).reshape(rows, cols).float()
    if weight.format == Format.INT4_AWQ:
        nibbles = _nibbles(_words(weight.data, cols, rows // 8, weight.row_stride))  # [cols, rows / 8, 8]
        return nibbles[..., _AWQ_ORDER].reshape(cols, rows).t().float()
    packed = _strided(weight.data, (rows, cols // 2), (weight.row_stride, 1))
    nibbles = torch.stack((packed & 15, packed >> 4), dim=-1).reshape(rows, cols)
    if weight.format == Format.INT4:
        return nibbles.float()
    return _E2M1.to(nibbles.device)[(nibbles & 7).long()] * torch.where(nibbles > 7, -1.0, 1.0)


def _zeros(weight: Weight, groups: int) -> torch.Tensor:
    """Zero points as fp32 [rows, groups]."""
    if weight.zeros is None:
        return torch.full((weight.rows, groups), 8.0, device=weight.data.device)
    words = -(-weight.rows // 8)
    if weight.format == Format.INT4:
        nibbles = _nibbles(_words(weight.zeros, words, groups, weight.zero_stride)).permute(0, 2, 1)  # [words, 8, groups]
        return nibbles.reshape(words * 8, groups)[: weight.rows].float() + weight.zero_offset
    nibbles = _nibbles(_words(weight.zeros, groups, words, weight.zero_stride))  # [groups, words, 8]
    if weight.format == Format.INT4_AWQ:
        nibbles = nibbles[..., _AWQ_ORDER]
    return nibbles.reshape(groups, words * 8)[:, : weight.rows].t().float() + weight.zero_offset
