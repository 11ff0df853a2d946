"""Multi-head latent attention: one compressed row per token is cached, and keys and values of all heads follow from it.

Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.1. Keys and values are never expanded: the matrix that would make keys is
applied to the queries instead, the one that would make values to what attention mixes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kept import first, keep, row_of, upto
from engine.kernels.kernels import Kernels
from engine.kernels.reference import dequantise, rms_norm, rotate
from engine.kernels.spec import Rotation
from engine.kernels.weights import PLAIN, Weight, plain, plain_dtype
from engine.kv.cache import KvCache
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Block, Decoder, LayerPart, Shapes, norm_shapes, rms
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.rope import Rope

_INNER_EPS = 1e-6  # of the norms between the two halves of a projection; no config key


@dataclass(frozen=True)
class LatentConfig(DecoderConfig):
    """As the cache counts, there is one head whose key and value are the two halves of a token's row."""

    query_rank: int | None
    rank: int
    plain_dim: int  # of a head's query and key, not turned
    turned_dim: int
    value_dim: int
    is_interleaved: bool  # the values that are turned together lie side by side
    has_bias: bool  # of the projections to and from the compressed rows

    @property
    def scale(self) -> float:
        factor = 1.0 if self.stretch is None else self.stretch.logit_factor
        return float((self.plain_dim + self.turned_dim) ** -0.5 * factor)


def read_latent(hf: HfConfig, **defaults: Any) -> dict[str, Any]:
    """The fields of `LatentConfig`; `defaults` as `read_common` takes them."""
    rank, turned = hf.integer("kv_lora_rank"), hf.integer("qk_rope_head_dim")
    if (rank + turned) % 2 or turned % 2:
        raise hf.error(f"kv_lora_rank {rank} and qk_rope_head_dim {turned} are not even together, or the latter alone")
    common = read_common(hf, **defaults)
    return common | {
        "num_kv_heads": 1,
        "head_dim": (rank + turned) // 2,
        "query_rank": hf.optional_integer("q_lora_rank"),
        "rank": rank,
        "plain_dim": hf.integer("qk_nope_head_dim"),
        "turned_dim": turned,
        "value_dim": hf.integer("v_head_dim"),
        "is_interleaved": hf.flag("rope_interleave", True),
        "has_bias": hf.flag("attention_bias", False),
    }


def latent_shapes(block: str, config: LatentConfig) -> Shapes:
    """Both norms and the attention of the block of that name."""
    hidden, heads, own = config.hidden_size, config.num_heads, f"{block}.self_attn"
    query = heads * (config.plain_dim + config.turned_dim)
    shapes = norm_shapes(block, hidden) | {
        f"{own}.kv_a_proj_with_mqa": (config.rank + config.turned_dim, hidden),
        f"{own}.kv_a_layernorm.weight": (config.rank,),
        f"{own}.kv_b_proj": (heads * (config.plain_dim + config.value_dim), config.rank),
        f"{own}.o_proj": (hidden, heads * config.value_dim),
    }
    biased = ["kv_a_proj_with_mqa", "o_proj"]
    if config.query_rank is None:
        shapes[f"{own}.q_proj"] = (query, hidden)
    else:
        shapes[f"{own}.q_a_proj"], shapes[f"{own}.q_b_proj"] = (config.query_rank, hidden), (query, config.query_rank)
        shapes[f"{own}.q_a_layernorm.weight"] = (config.query_rank,)
        biased.append("q_a_proj")
    if config.has_bias:
        shapes |= {f"{own}.{name}.bias": shapes[f"{own}.{name}"][:1] for name in biased}
    return shapes


@dataclass(frozen=True, eq=False)
class Given:
    """What a layer's attention has of T new tokens."""

    query: torch.Tensor  # [T, Hq, rank + turned]
    row: torch.Tensor  # [T, 1, rank + turned], which is to be kept
    normed: torch.Tensor  # [T, H]
    low: torch.Tensor  # [T, query_rank], of which queries are made; without a rank [T, H]
    rotation: Rotation


Mix = Callable[[Given, KvCache], torch.Tensor]  # keeps the rows and mixes those that are seen: to [T, Hq, rank]


def mix_all(layer: int, config: LatentConfig, kernels: Kernels) -> Mix:
    """Each token sees all before it."""

    def mix(given: Given, kv: KvCache) -> torch.Tensor:
        rows, start = kv.rows(layer, len(given.row))
        keep(rows, start, given.row)
        keys = upto(rows, start, len(given.row))  # [1, S, rank + turned]
        return kernels.attention(given.query, keys, first(keys, config.rank), scale=config.scale, row=row_of(start))

    return mix


class LatentBlock:
    """A `Block`: latent attention, whose mixing is `mix`, and then the feed-forward part."""

    def __init__(self, config: LatentConfig, weights: Weights, kernels: Kernels, mix: Mix, feed_forward: LayerPart) -> None:
        self._config, self._kernels, self._mix, self._feed_forward = config, kernels, mix, feed_forward
        self._before, self._after = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        self._own = own = weights.at("self_attn")
        self._compress, self._out = own.matrix("kv_a_proj_with_mqa"), own.matrix("o_proj")
        self._latent_norm = own.vector("kv_a_layernorm.weight")
        self._queries = own.matrix("q_proj" if config.query_rank is None else "q_b_proj")
        self._into, self._out_of = _by_head(own.matrix("kv_b_proj"), config)

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        config, rank = self._config, self._config.rank
        normed = rms_norm(x, self._before, config.rms_eps)
        row = self._kernels.linear(normed, self._compress)  # [T, rank + turned]
        plain, turned = (
            rms_norm(row[:, None, :rank], self._latent_norm, _INNER_EPS),
            self._turned(row[:, None, rank:], rotation),
        )
        low = self._low(normed)
        query = self._kernels.linear(low, self._queries).view(len(x), config.num_heads, -1)
        into = self._each_head(query[..., : config.plain_dim], self._into)  # [T, Hq, rank]
        query = torch.cat((into, self._turned(query[..., config.plain_dim :], rotation)), dim=-1)
        mixed = self._mix(Given(query, torch.cat((plain, turned), dim=-1), normed, low, rotation), kv)  # [T, Hq, rank]
        x += self._kernels.linear(self._each_head(mixed, self._out_of).flatten(1), self._out)
        x += self._feed_forward(rms_norm(x, self._after, config.rms_eps), experts)

    def _low(self, normed: torch.Tensor) -> torch.Tensor:
        if self._config.query_rank is None:
            return normed
        low = self._kernels.linear(normed, self._own.matrix("q_a_proj"))
        return rms_norm(low, self._own.vector("q_a_layernorm.weight"), _INNER_EPS)

    def _turned(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        return rotate(halved(x) if self._config.is_interleaved else x, rotation)

    def _each_head(self, x: torch.Tensor, matrices: list[Weight]) -> torch.Tensor:
        """x [T, Hq, in] to [T, Hq, out], each head by its own matrix."""
        return torch.stack([self._kernels.linear(x[:, head], matrix) for head, matrix in enumerate(matrices)], dim=1)


def halved(x: torch.Tensor) -> torch.Tensor:
    """x [T, heads, R] with pairs side by side as halves: in queries and keys alike, which their product does not see."""
    return torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)


def _by_head(matrix: Weight, config: LatentConfig) -> tuple[list[Weight], list[Weight]]:
    """From queries into the compressed space [rank, plain] and out of it to values [value, rank], for each head.

    In place where the matrix is plain; its transpose has no scales that a quantised one could keep.
    """
    if matrix.format not in PLAIN.values() or matrix.scales is not None:
        matrix = plain(dequantise(matrix).contiguous())
    height, size = config.plain_dim + config.value_dim, plain_dtype(matrix.format).itemsize
    into, out_of = [], []
    for head in range(config.num_heads):
        data = matrix.data[head * height * matrix.row_stride :]
        into.append(
            Weight(matrix.format, config.rank, config.plain_dim, data, config.rank * size, element_step=1)  # by columns
        )
        out_of.append(matrix.take(head * height + config.plain_dim, config.value_dim))
    return into, out_of


def latent_decoder(
    config: LatentConfig, weights: Weights, kernels: Kernels, parts: list[LayerPart], mixes: Sequence[Mix] = ()
) -> Decoder:
    """`parts` are the feed-forward parts by layer, `mixes` what attention mixes by; without them all see all."""
    mixes = mixes or [mix_all(layer, config, kernels) for layer in range(config.num_layers)]
    blocks: list[Block] = [
        LatentBlock(config, weights.at(f"model.layers.{layer}"), kernels, mix, part)
        for layer, (mix, part) in enumerate(zip(mixes, parts, strict=True))
    ]
    rope = Rope(config.turned_dim, config.rope_theta, config.stretch)
    return Decoder(weights, blocks, rope, rms(weights.vector("model.norm.weight"), config.rms_eps), kernels)
