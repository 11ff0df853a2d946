"""Multi-head latent attention: one compressed row per token is cached, and keys and values of all heads follow from it.

Source: DeepSeek-AI 2024, DeepSeek-V2, section 2.1. Keys and values are never expanded: the matrix that would make keys is
applied to the queries instead, the one that would make values to what attention mixes.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kept import first, keep
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


class LatentBlock:
    """A `Block`: latent attention and then the feed-forward part."""

    def __init__(self, layer: int, config: LatentConfig, weights: Weights, kernels: Kernels, feed_forward: LayerPart) -> None:
        self._layer, self._config, self._kernels, self._feed_forward = layer, config, kernels, feed_forward
        self._before, self._after = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        self._own = own = weights.at("self_attn")
        self._compress, self._out = own.matrix("kv_a_proj_with_mqa"), own.matrix("o_proj")
        self._latent_norm = own.vector("kv_a_layernorm.weight")
        self._into, self._out_of = _by_head(own.matrix("kv_b_proj"), config)

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        config, rank = self._config, self._config.rank
        normed = rms_norm(x, self._before, config.rms_eps)
        row = self._kernels.linear(normed, self._compress)  # [T, rank + turned]
        plain, turned = (
            rms_norm(row[:, None, :rank], self._latent_norm, _INNER_EPS),
            self._turned(row[:, None, rank:], rotation),
        )
        rows, start = kv.rows(self._layer, len(x))
        keep(rows, start, torch.cat((plain, turned), dim=-1))
        query = self._queries(normed).view(len(x), config.num_heads, -1)
        into = self._each_head(query[..., : config.plain_dim], self._into)  # [T, Hq, rank]
        query = torch.cat((into, self._turned(query[..., config.plain_dim :], rotation)), dim=-1)
        keys = rows[:, : start + len(x)]  # [1, S, rank + turned]
        mixed = self._kernels.attention(query, keys, first(keys, rank), scale=config.scale)  # [T, Hq, rank]
        x += self._kernels.linear(self._each_head(mixed, self._out_of).flatten(1), self._out)
        x += self._feed_forward(rms_norm(x, self._after, config.rms_eps), experts)

    def _queries(self, normed: torch.Tensor) -> torch.Tensor:
        if self._config.query_rank is None:
            return self._kernels.linear(normed, self._own.matrix("q_proj"))
        low = self._kernels.linear(normed, self._own.matrix("q_a_proj"))
        low = rms_norm(low, self._own.vector("q_a_layernorm.weight"), _INNER_EPS)
        return self._kernels.linear(low, self._own.matrix("q_b_proj"))

    def _turned(self, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """x [T, heads, R]; pairs side by side become halves, in queries and keys alike, which their product does not see."""
        if self._config.is_interleaved:
            x = torch.cat((x[..., 0::2], x[..., 1::2]), dim=-1)
        return rotate(x, rotation)

    def _each_head(self, x: torch.Tensor, matrices: list[Weight]) -> torch.Tensor:
        """x [T, Hq, in] to [T, Hq, out], each head by its own matrix."""
        return torch.stack([self._kernels.linear(x[:, head], matrix) for head, matrix in enumerate(matrices)], dim=1)


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


def latent_decoder(config: LatentConfig, weights: Weights, kernels: Kernels, parts: list[LayerPart]) -> Decoder:
    """`parts` are the feed-forward parts by layer."""
    blocks: list[Block] = [
        LatentBlock(layer, config, weights.at(f"model.layers.{layer}"), kernels, part) for layer, part in enumerate(parts)
    ]
    rope = Rope(config.turned_dim, config.rope_theta, config.stretch)
    return Decoder(weights, blocks, rope, rms(weights.vector("model.norm.weight"), config.rms_eps), kernels)
