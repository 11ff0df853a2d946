"""Latent attention over the tokens that an index has chosen: a small head scores all that were read, and the best are mixed.

Source: DeepSeek-AI 2025, DeepSeek-V3.2, section 2. What that index keeps of a token lies beside the token's compressed row. The
published code turns its queries and keys by a Hadamard matrix to round them to 8 bits; the product does not see it, and here
nothing is rounded beyond what the cache's own type does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.kernels.kept import first, keep, numbers
from engine.kernels.kernels import Kernels
from engine.kernels.reference import MOST_LOGITS, rotate
from engine.kernels.spec import Rotation
from engine.kernels.weights import plain
from engine.kv.cache import KvCache
from engine.models.decoder import Shapes
from engine.models.hf_config import HfConfig
from engine.models.latent import Given, LatentConfig, Mix, halved, read_latent
from engine.models.layers import Weights
from engine.plan.footprint import Choice

_NORM_EPS = 1e-6  # of the index's keys; no config key


@dataclass(frozen=True)
class SparseConfig(LatentConfig):
    index_heads: int
    index_dim: int
    index_top_k: int  # tokens that one sees
    is_index_interleaved: bool  # as `is_interleaved`, in the index
    has_index: tuple[bool, ...]  # by layer; the others see what the last one before has chosen

    @property
    def row_dim(self) -> int:
        """Numbers that are kept of a token beside the index's."""
        return self.rank + self.turned_dim

    @property
    def choice(self) -> Choice:
        return Choice(self.index_top_k, self.row_dim, self.has_index.count(True), self.index_heads, self.index_dim)


def read_sparse(hf: HfConfig, *, interleaved: bool, has_index: Sequence[bool], **defaults: Any) -> dict[str, Any]:
    """The fields of `SparseConfig`; `interleaved` holds where the file is silent, `defaults` as `read_latent` takes them."""
    common, index_dim = read_latent(hf, **defaults), hf.integer("index_head_dim", 128)
    if common["query_rank"] is None:
        raise hf.error("q_lora_rank is missing, of which the index makes its queries")
    if index_dim % 2 or index_dim < common["turned_dim"]:
        raise hf.error(f"index_head_dim {index_dim} is odd or less than qk_rope_head_dim {common['turned_dim']}")
    return common | {
        "head_dim": (padded(common["rank"] + common["turned_dim"]) + index_dim) // 2,
        "index_heads": hf.integer("index_n_heads"),
        "index_dim": index_dim,
        "index_top_k": hf.integer("index_topk"),
        "is_index_interleaved": hf.flag("indexer_rope_interleave", interleaved),
        "has_index": tuple(has_index),
    }


def padded(dim: int) -> int:
    """Numbers of a compressed row as the cache counts them: whole blocks of 8 bits, which rows of the index then follow."""
    return -(-dim // 32) * 32


def index_shapes(block: str, layer: int, config: SparseConfig) -> Shapes:
    """Of the index of the block of that name, where it has one."""
    if not config.has_index[layer]:
        return {}
    assert config.query_rank is not None, "read_sparse has asked for it"
    own = f"{block}.self_attn.indexer"
    return {
        f"{own}.wq_b": (config.index_heads * config.index_dim, config.query_rank),
        f"{own}.wk": (config.index_dim, config.hidden_size),
        f"{own}.k_norm.weight": (config.index_dim,),
        f"{own}.k_norm.bias": (config.index_dim,),
        f"{own}.weights_proj": (config.index_heads, config.hidden_size),
    }


def sparse_mixes(config: SparseConfig, weights: Weights, kernels: Kernels) -> list[Mix]:
    """By layer. What an index has chosen is handed to the layers after it within a pass."""
    mixes: list[Mix] = []
    index: _Index | None = None
    for layer in range(config.num_layers):
        if has_own := config.has_index[layer]:
            index = _Index(config, weights.at(f"model.layers.{layer}.self_attn.indexer"), kernels)
        assert index is not None, "the first layer has one"
        mixes.append(_MixChosen(layer, config, kernels, index, has_own=has_own))
    return mixes


class _Index:
    """Chooses among all tokens for each that sees more than `index_top_k` of them."""

    def __init__(self, config: SparseConfig, weights: Weights, kernels: Kernels) -> None:
        self._config, self._kernels = config, kernels
        self._queries, self._keys, self._shares = (weights.matrix(name) for name in ("wq_b", "wk", "weights_proj"))
        self._norm, self._bias = weights.vector("k_norm.weight"), weights.vector("k_norm.bias")
        self.chosen = torch.empty(0)  # [T, index_top_k] positions, of the last tokens of the present pass

    def choose(self, given: Given, rows: torch.Tensor, start: int) -> None:
        """Keeps the new tokens' keys as the rows from `start` on of rows [1, S, ...], and fills `chosen`."""
        config, end = self._config, start + len(given.normed)
        keys = F.layer_norm(
            self._kernels.linear(given.normed, self._keys), (config.index_dim,), self._norm, self._bias, _NORM_EPS
        )
        keep(rows, start, self._turned(keys[:, None], given.rotation))
        few = _seeing_all(config, start, len(given.normed))
        if few == len(given.normed):
            self.chosen = rows.new_empty(0, config.index_top_k, dtype=torch.long)
            return
        cosine, sine = given.rotation
        queries = self._kernels.linear(given.low[few:], self._queries).view(-1, config.index_heads, config.index_dim)
        shares = self._kernels.linear(given.normed[few:], self._shares)  # [T, heads]
        self.chosen = self._best(self._turned(queries, (cosine[few:], sine[few:])), shares, rows[0, :end])

    def _best(self, queries: torch.Tensor, shares: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """In order, for queries [T, heads, D] of the last tokens of those whose keys are `seen` [S, ...]; some at a time."""
        (count, heads, dim), end = queries.shape, len(seen)
        shares = shares * (heads * dim) ** -0.5
        table = plain(numbers(seen).contiguous())  # a copy where kept in 8 bits
        positions = torch.arange(end, device=queries.device)
        at_once = max(1, MOST_LOGITS // (heads * end))
        found = []
        for first_token in range(0, count, at_once):
            part = slice(first_token, min(count, first_token + at_once))
            scores = self._kernels.linear(queries[part].flatten(0, 1), table).relu_().view(-1, heads, end)
            wanted = torch.einsum("th,ths->ts", shares[part], scores)
            own = positions[end - count :][part]
            wanted.masked_fill_(positions > own[:, None], float("-inf"))
            found.append(wanted.topk(self._config.index_top_k, dim=-1).indices.sort(dim=-1).values)
        return torch.cat(found)

    def _turned(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """The first values of each head of x [T, heads, D]."""
        if self._config.is_index_interleaved:
            turned = self._config.turned_dim
            x = torch.cat((halved(x[..., :turned]), x[..., turned:]), dim=-1)
        return rotate(x, rotation)


class _MixChosen:
    """A `Mix` over what `index` has chosen: the layer's own, or that of one before."""

    def __init__(self, layer: int, config: SparseConfig, kernels: Kernels, index: _Index, *, has_own: bool) -> None:
        self._layer, self._config, self._kernels, self._index, self._has_own = layer, config, kernels, index, has_own

    def __call__(self, given: Given, kv: KvCache) -> torch.Tensor:
        config = self._config
        dims = (config.row_dim, config.index_dim) if self._has_own else (config.row_dim,)
        (rows, *of_index), start = kv.several(self._layer, config.index_top_k, *dims)
        keep(rows, start, given.row)
        if self._has_own:
            self._index.choose(given, of_index[0], start)
        few = _seeing_all(config, start, len(given.row))
        mixed = [self._attend(given.query[:few], rows[:, : start + few])] if few else []
        for query, chosen in zip(given.query[few:], self._index.chosen, strict=True):
            mixed.append(self._attend(query[None], rows[:, chosen]))
        return torch.cat(mixed)

    def _attend(self, query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """To [T, Hq, rank] from keys [1, S, ...]."""
        return self._kernels.attention(query, keys, first(keys, self._config.rank), scale=self._config.scale)


def _seeing_all(config: SparseConfig, start: int, count: int) -> int:
    """How many of `count` tokens from `start` on see no more than may be chosen."""
    return min(max(config.index_top_k - start, 0), count)
