"""The frame that nearly every decoder shares: embedding, a stack of the model's own blocks, a last norm, the head."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import AttentionBlock, Rotation
from engine.kv.cache import KvCache
from engine.models.layers import Experts, Rope, Weights, YarnScaling, attention_spec, embed

Block = Callable[[torch.Tensor, Rotation, KvCache, Experts], None]  # adds to the stream [T, H] in place
FeedForward = Callable[[torch.Tensor, Experts], torch.Tensor]  # normed x [T, H] to what is added to the stream
Shapes = dict[str, tuple[int, ...]]  # matrices [out, in] by stem, vectors by their whole name


def frame_shapes(vocab_size: int, hidden_size: int, *, tied: bool) -> Shapes:
    """The tensors of `Decoder` itself."""
    shapes: Shapes = {"model.embed_tokens": (vocab_size, hidden_size), "model.norm.weight": (hidden_size,)}
    if not tied:
        shapes["lm_head"] = (vocab_size, hidden_size)
    return shapes


def attention_shapes(
    block: str, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, *, bias: bool = False
) -> Shapes:
    """Both norms and the projections of `attention_spec` in the block of that name."""
    shapes: Shapes = {
        f"{block}.input_layernorm.weight": (hidden_size,),
        f"{block}.post_attention_layernorm.weight": (hidden_size,),
        f"{block}.self_attn.q_proj": (num_heads * head_dim, hidden_size),
        f"{block}.self_attn.k_proj": (num_kv_heads * head_dim, hidden_size),
        f"{block}.self_attn.v_proj": (num_kv_heads * head_dim, hidden_size),
        f"{block}.self_attn.o_proj": (hidden_size, num_heads * head_dim),
    }
    if bias:
        shapes |= {f"{name}.bias": shape[:1] for name, shape in shapes.items() if "self_attn" in name}
    return shapes


def swiglu_shapes(hidden_size: int, inner_size: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Gate, up and down."""
    return (inner_size, hidden_size), (inner_size, hidden_size), (hidden_size, inner_size)


class PreNormBlock:
    """Attention and then the feed-forward part, each on the normed residual stream and added to it."""

    def __init__(self, layer: int, attention: AttentionBlock, feed_forward: FeedForward) -> None:
        self._layer, self._attention, self._feed_forward = layer, attention, feed_forward

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        normed = self._attention(x, rotation, *kv.layer(self._layer), kv.length)
        x += self._feed_forward(normed, experts)


class Decoder:
    """A `Model`; see there."""

    def __init__(self, weights: Weights, blocks: Sequence[Block], rope: Rope, rms_eps: float, kernels: Kernels) -> None:
        self._embedding = weights.matrix("model.embed_tokens")
        self._head = weights.matrix("lm_head" if weights.has("lm_head") else "model.embed_tokens")
        self._norm = weights.vector("model.norm.weight")
        self._blocks, self._rope, self._rms_eps, self._kernels = blocks, rope, rms_eps, kernels

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts) -> torch.Tensor:
        x = embed(self._embedding, tokens)  # [T, H]
        rotation = self._rope.table(kv.length, len(tokens))
        for block in self._blocks:
            block(x, rotation, kv, experts)
        last = rms_norm(x[-1:], self._norm, self._rms_eps)  # [1, H]
        return self._kernels.linear(last, self._head)[0]  # [V]


class GqaGeometry(Protocol):
    """What the configurations of these decoders have in common."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def rms_eps(self) -> float: ...
    @property
    def rope_theta(self) -> float: ...
    @property
    def yarn(self) -> YarnScaling | None: ...


def gqa_decoder(
    config: GqaGeometry,
    weights: Weights,
    kernels: Kernels,
    windows: Sequence[int | None],
    feed_forward: Callable[[int, Weights], FeedForward],
) -> Decoder:
    """Pre-norm blocks of grouped-query attention; `feed_forward(layer, its weights)` makes what is the model's own."""
    blocks = []
    for layer in range(config.num_layers):
        own = weights.at(f"model.layers.{layer}")
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        attention = kernels.attention_block(attention_spec(own, *heads, config.rms_eps, windows[layer]))
        blocks.append(PreNormBlock(layer, attention, feed_forward(layer, own)))
    return Decoder(weights, blocks, Rope(config.head_dim, config.rope_theta, config.yarn), config.rms_eps, kernels)
