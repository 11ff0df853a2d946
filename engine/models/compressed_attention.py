"""Attention to a window of tokens and to compressed entries of all before: one vector is a token's key and value for all heads.

Source: DeepSeek-AI 2026, DeepSeek-V4, section 2.3, and the published configuration. Layers differ in what they see beyond the
window: nothing, a few entries of few tokens each that an indexer chooses, or every entry of many tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import gcd

import torch
import torch.nn.functional as F

from engine.kernels.kept import keep, numbers
from engine.kernels.kernels import Kernels
from engine.kernels.reference import dequantise, rms_norm
from engine.kernels.spec import Rotation
from engine.kernels.weights import COLUMNS_OUTERMOST, Weight, plain
from engine.kv.cache import KvCache
from engine.models.compressor import Compressor, compressor_shapes
from engine.models.decoder import Shapes
from engine.models.layers import Weights
from engine.models.rope import Rope
from engine.models.rope_tail import turned, turned_back
from engine.plan.footprint import Compressed

_AT_ONCE = 1 << 21  # numbers of queries, or of an indexer's logits: 8 MiB of fp32
_KEYS_AT_ONCE = 1 << 19  # numbers of gathered keys; a query of more goes alone
_PARTS = 16  # of the heads of a query that goes alone, so that as many threads have one


@dataclass(frozen=True, slots=True, eq=False)
class Far:
    """What a pass sees beyond the window. Of a query that sees fewer than `top` entries, `chosen` says nothing."""

    ratio: int  # tokens of an entry
    entries: torch.Tensor  # [1, N, ...]
    chosen: torch.Tensor | None  # [T, top] for each query; None where each sees all of its past


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes that all layers share."""

    hidden_size: int
    num_heads: int
    dim: int
    query_rank: int
    groups: int  # of heads, whose outputs are narrowed to `group_rank` each
    group_rank: int
    window: int
    index_heads: int
    index_dim: int
    eps: float


def attention_shapes(name: str, shape: AttentionShape, kept: Compressed | None) -> Shapes:
    """Of `CompressedAttention` under that name; `kept` as for the cache."""
    heads = shape.num_heads * shape.dim
    shapes: Shapes = {
        f"{name}.wq_a": (shape.query_rank, shape.hidden_size),
        f"{name}.q_norm.weight": (shape.query_rank,),
        f"{name}.wq_b": (heads, shape.query_rank),
        f"{name}.wkv": (shape.dim, shape.hidden_size),
        f"{name}.kv_norm.weight": (shape.dim,),
        f"{name}.wo_a": (shape.groups * shape.group_rank, heads // shape.groups),
        f"{name}.wo_b": (shape.hidden_size, shape.groups * shape.group_rank),
        f"{name}.attn_sink": (shape.num_heads,),
    }
    if kept is None:
        return shapes
    overlaps = bool(kept.top)
    shapes |= compressor_shapes(f"{name}.compressor", shape.hidden_size, shape.dim, kept.ratio, overlaps=overlaps)
    if not kept.top:
        return shapes
    shapes |= compressor_shapes(f"{name}.indexer.compressor", shape.hidden_size, shape.index_dim, kept.ratio, overlaps=True)
    return shapes | {
        f"{name}.indexer.wq_b": (shape.index_heads * shape.index_dim, shape.query_rank),
        f"{name}.indexer.weights_proj": (shape.index_heads, shape.hidden_size),
    }


class CompressedAttention:
    """Normed x [T, H] to [T, H]. `rope` is the layer's, by which its entries are turned too."""

    def __init__(
        self, layer: int, shape: AttentionShape, kept: Compressed | None, weights: Weights, kernels: Kernels, rope: Rope
    ) -> None:
        self._layer, self._shape, self._kernels = layer, shape, kernels
        self._into_low, self._out_of_low = weights.matrix("wq_a"), weights.matrix("wq_b")
        self._row, self._out = weights.matrix("wkv"), weights.matrix("wo_b")
        self._query_norm, self._row_norm = weights.vector("q_norm.weight"), weights.vector("kv_norm.weight")
        self._narrow = _by_group(weights.matrix("wo_a"), shape.groups)
        self._sinks = weights.vector("attn_sink")
        self._beyond = Beyond(layer, shape, kept, weights, kernels, rope) if kept is not None else None

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache) -> torch.Tensor:
        """Queries of all heads are several times as wide as the stream: they are made for some tokens at a time."""
        shape, linear, count = self._shape, self._kernels.linear, len(x)
        row = rms_norm(linear(x, self._row), self._row_norm, shape.eps)[:, None]  # [T, 1, D]
        rows, start = kv.rows(self._layer, count)
        keep(rows, start, turned(row, rotation))
        low = rms_norm(linear(x, self._into_low), self._query_norm, shape.eps)  # [T, R]
        far = self._beyond(x, low, rotation, kv) if self._beyond is not None else None
        y = torch.empty_like(x)
        for some in _slices(count, _AT_ONCE // (shape.num_heads * shape.dim)):
            own, seen = (rotation[0][some], rotation[1][some]), rows[:, : start + some.stop]
            mixed = self._mixed(self._queries(low[some], own), seen, kv.length + some.start, some, far)
            y[some] = self._projected(turned_back(mixed, own))
        return y

    def _queries(self, low: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """[T, R] to [T, Hq, D] of unit length but for the scale."""
        shape = self._shape
        q = self._kernels.linear(low, self._out_of_low).view(len(low), shape.num_heads, shape.dim)
        return turned(F.rms_norm(q, (shape.dim,), eps=shape.eps), rotation)

    def _mixed(self, q: torch.Tensor, rows: torch.Tensor, start: int, some: slice, far: Far | None) -> torch.Tensor:
        """Queries [T, Hq, D] from position `start` on over their window of rows [1, S, ...], of which the last T are their own,
        and over what is far; `some` are the queries' numbers in it."""
        heads, dim = q.shape[1:]
        scale = dim**-0.5
        if far is None:
            return self._kernels.attention(q, rows, rows, scale=scale, window=self._shape.window, sinks=self._sinks)
        entries, chosen = far.entries, None if far.chosen is None else far.chosen[some]
        mixed = torch.empty_like(q)
        for first, last, near, count in _alike(start, len(q), self._shape.window, far, dim):
            end = rows.shape[1] - len(q) + last
            begin = end - (last - first) - near + 1
            windows = rows[0, begin:end].unfold(0, near, 1).transpose(1, 2)  # [B, near, ...]
            if chosen is None or count < chosen.shape[1]:
                seen = entries[:, :count].expand(last - first, -1, -1)
            else:
                seen = entries[0][chosen[first:last]]  # [B, top, ...]
            keys = torch.cat((seen, windows), dim=1)
            if len(keys) == 1:
                keys = keys.expand(gcd(heads, _PARTS), -1, -1)
            own = q[first:last].reshape(1, -1, dim)  # [1, B * Hq, D]: each query's keys are those of its own key heads
            sinks = self._sinks.repeat(last - first)
            mixed[first:last] = self._kernels.attention(own, keys, keys, scale=scale, sinks=sinks).view(-1, heads, dim)
        return mixed

    def _projected(self, mixed: torch.Tensor) -> torch.Tensor:
        """[T, Hq, D] to [T, H], each group of heads narrowed by its own rows of the first matrix."""
        groups = mixed.reshape(len(mixed), self._shape.groups, -1)
        narrow = [self._kernels.linear(groups[:, group], matrix) for group, matrix in enumerate(self._narrow)]
        return self._kernels.linear(torch.cat(narrow, dim=1), self._out)


class Beyond:
    """What a layer keeps of all tokens in compressed entries, and which of these each query sees."""

    def __init__(
        self, layer: int, shape: AttentionShape, kept: Compressed, weights: Weights, kernels: Kernels, rope: Rope
    ) -> None:
        self._layer, self._ratio, self._top = layer, kept.ratio, kept.top
        names = ("compressor", "indexer.compressor")[: len(kept.widths)]
        self._compressors = [
            Compressor(weights.at(name), kernels, dim, kept.ratio, rope, shape.eps)
            for name, dim in zip(names, kept.widths, strict=True)
        ]
        self._indexer = Indexer(shape, kept, weights.at("indexer"), kernels) if kept.top else None

    def __call__(self, x: torch.Tensor, low: torch.Tensor, rotation: Rotation, kv: KvCache) -> Far:
        """Normed x [T, H] and its narrowed queries [T, R]. Writes the entries that these tokens complete."""
        now, following = kv.state(self._layer, *(compressor.state_shape for compressor in self._compressors))
        every = kv.compressed(self._layer)
        for compressor, rows, before, after in zip(self._compressors, every, now, following, strict=True):
            entries = compressor(x, kv.length, before, after)
            if len(entries):
                keep(rows, kv.length // self._ratio, entries)
        complete = (kv.length + len(x)) // self._ratio
        chosen = None
        if self._indexer is not None and complete > self._top:
            chosen = self._indexer(x, low, rotation, every[1][0, :complete], kv.length)
        return Far(self._ratio, every[0][:, :complete], chosen)


class Indexer:
    """Chooses entries by the sum over its heads of a weight times what is positive of query times key."""

    def __init__(self, shape: AttentionShape, kept: Compressed, weights: Weights, kernels: Kernels) -> None:
        self._kernels, self._ratio, self._top = kernels, kept.ratio, kept.top
        self._heads, self._dim = shape.index_heads, shape.index_dim
        self._query, self._weights = weights.matrix("wq_b"), weights.matrix("weights_proj")

    def __call__(self, x: torch.Tensor, low: torch.Tensor, rotation: Rotation, keys: torch.Tensor, start: int) -> torch.Tensor:
        """Normed x [T, H] from position `start` on, its narrowed queries [T, R] and keys [N, ...] of more than `top` entries,
        to the numbers of the best [T, top]; see `Far`."""
        entry, best = torch.arange(len(keys), device=x.device), []
        for some in _slices(len(x), _AT_ONCE // (self._heads * max(len(keys), self._dim))):
            q = self._kernels.linear(low[some], self._query).view(-1, self._heads, self._dim)
            weights = self._kernels.linear(x[some], self._weights)  # [B, Hi]; what they are scaled by changes no order
            scores = self._scores(turned(q, (rotation[0][some], rotation[1][some])), weights, keys)  # [B, N]
            visible = torch.arange(start + some.start + 1, start + some.stop + 1, device=x.device) // self._ratio
            scores.masked_fill_(entry >= visible[:, None], float("-inf"))
            best.append(scores.topk(self._top, dim=-1, sorted=False).indices)
        return torch.cat(best)

    def _scores(self, q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """q [B, Hi, Di], weights [B, Hi] and kept keys [N, ...] to [B, N]."""
        at_once = max(1, _AT_ONCE // (self._heads * len(q)))
        parts = []
        for some in torch.split(keys, at_once):
            products = self._kernels.linear(q.flatten(0, 1), plain(numbers(some).contiguous())).relu_()
            parts.append((weights[:, None] @ products.view(len(q), self._heads, -1))[:, 0])
        return torch.cat(parts, dim=1)


def _slices(count: int, most: int) -> Iterator[slice]:
    """All of `count` in turn, no more than `most` at a time, and at least one."""
    step = max(1, most)
    return (slice(first, min(count, first + step)) for first in range(0, count, step))


def _alike(start: int, tokens: int, window: int, far: Far, dim: int) -> Iterator[tuple[int, int, int, int]]:
    """Runs of queries from position `start` on that see as many tokens and as many entries: (first, last, tokens, entries)."""
    most = start + tokens if far.chosen is None else far.chosen.shape[1]

    def sees(query: int) -> tuple[int, int]:
        position = start + query
        return min(window, position + 1), min(most, (position + 1) // far.ratio)

    for (near, count), queries in groupby(range(tokens), sees):
        run = list(queries)
        for some in _slices(len(run), _KEYS_AT_ONCE // ((near + count) * dim)):
            yield run[0] + some.start, run[0] + some.stop, near, count


def _by_group(matrix: Weight, groups: int) -> list[Weight]:
    """The rows of each group, in place where no block of scales or zero points lies in two of them."""
    height = matrix.rows // groups
    shared = matrix.scales is not None and matrix.block_rows < matrix.rows and height % matrix.block_rows
    if shared or matrix.format in COLUMNS_OUTERMOST or (matrix.zeros is not None and height % 8):
        matrix = plain(dequantise(matrix).contiguous())
    return [matrix.take(group * height, height) for group in range(groups)]
