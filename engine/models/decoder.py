"""The frame that nearly every decoder shares: embedding, a stack of the model's own blocks, a last norm, the head."""

from collections.abc import Callable, Sequence

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import AttentionBlock, Rotation
from engine.kv.cache import KvCache
from engine.models.attention import Attention
from engine.models.config import DecoderConfig
from engine.models.layers import SWIGLU_PARTS, Experts, Weights, embed, swiglu
from engine.models.rope import Rope

Block = Callable[[torch.Tensor, Rotation, KvCache, Experts], None]  # adds to the stream [T, H] in place
Norm = Callable[[torch.Tensor], torch.Tensor]
LayerPart = Callable[[torch.Tensor, Experts], torch.Tensor]  # normed x [T, H] to what is added to the stream
Shapes = dict[str, tuple[int, ...]]  # matrices [out, in] by stem, all else by its whole name


class StoredLessOne(tuple[int, ...]):
    """The shape of a norm's weight from which 1 has been taken; what is bound has it again."""


class Plain(tuple[int, ...]):
    """The shape of a tensor in a plain type that is no matrix for the kernels, though it may have two dimensions."""


class Table(tuple[int, ...]):
    """The shape of a tensor of whole numbers, which all are from 0 up and below `limit`."""

    limit: int

    def __new__(cls, shape: tuple[int, ...], limit: int) -> "Table":
        table = super().__new__(cls, shape)
        table.limit = limit
        return table


def frame_shapes(vocab_size: int, hidden_size: int, *, tied: bool) -> Shapes:
    """The tensors of `Decoder` itself."""
    shapes: Shapes = {"model.embed_tokens": (vocab_size, hidden_size), "model.norm.weight": (hidden_size,)}
    if not tied:
        shapes["lm_head"] = (vocab_size, hidden_size)
    return shapes


def frame_of(config: DecoderConfig) -> Shapes:
    return frame_shapes(config.vocab_size, config.hidden_size, tied=config.tied)


def norm_shapes(block: str, hidden_size: int) -> Shapes:
    """The two norms of a pre-norm block in their usual names."""
    return {f"{block}.{name}_layernorm.weight": (hidden_size,) for name in ("input", "post_attention")}


def attention_shapes(block: str, config: DecoderConfig, *, biases: str = "") -> Shapes:
    """Both norms and the projections of `attention_spec` in the block of that name; `biases` of "qkvo" have one."""
    query, key, hidden = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim, config.hidden_size
    shapes = norm_shapes(block, hidden)
    for name, shape in {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "o": (hidden, query)}.items():
        shapes[f"{block}.self_attn.{name}_proj"] = shape
        if name in biases:
            shapes[f"{block}.self_attn.{name}_proj.bias"] = shape[:1]
    return shapes


def mlp_shapes(part: str, hidden_size: int, inner_size: int) -> Shapes:
    """Of `swiglu` under that name."""
    shapes = swiglu_shapes(hidden_size, inner_size)
    return {f"{part}.{name}": shape for name, shape in zip(SWIGLU_PARTS, shapes, strict=True)}


def swiglu_shapes(hidden_size: int, inner_size: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Gate, up and down."""
    return (inner_size, hidden_size), (inner_size, hidden_size), (hidden_size, inner_size)


def dense(weights: Weights, kernels: Kernels) -> LayerPart:
    """Of a layer without experts, under the names of `swiglu`."""
    mlp = swiglu(weights, kernels)
    return lambda x, _: mlp(x)


def wide_norm_shapes(block: str, config: DecoderConfig) -> Shapes:
    """Norms of queries and keys over all heads."""
    sizes = {"q": config.num_heads * config.head_dim, "k": config.num_kv_heads * config.head_dim}
    return {f"{block}.self_attn.{name}_norm.weight": (size,) for name, size in sizes.items()}


def gated_expert_shapes(part: str, hidden_size: int, inner_size: int) -> Shapes:
    """Of `gated_expert` under that name."""
    return mlp_shapes(f"{part}.shared_expert", hidden_size, inner_size) | {f"{part}.shared_expert_gate": (1, hidden_size)}


class PreNormBlock:
    """Attention and then the feed-forward part, each on the normed residual stream and added to it."""

    def __init__(self, layer: int, attention: AttentionBlock, feed_forward: LayerPart) -> None:
        self._layer, self._attention, self._feed_forward = layer, attention, feed_forward

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        normed = self._attention(x, rotation, *kv.layer(self._layer, len(x)))
        x += self._feed_forward(normed, experts)


class Decoder:
    """A `Model`; see there. `finish` makes logits of what the head gives."""

    def __init__(
        self,
        weights: Weights,
        blocks: Sequence[Block],
        rope: Rope,
        norm: Norm,
        kernels: Kernels,
        embedding_scale: float = 1.0,
        finish: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits,
    ) -> None:
        self._embedding = weights.matrix("model.embed_tokens")
        self._head = weights.matrix("lm_head" if weights.has("lm_head") else "model.embed_tokens")
        self._blocks, self._rope, self._norm, self._kernels = blocks, rope, norm, kernels
        self._embedding_scale, self._finish = embedding_scale, finish

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts, places: torch.Tensor | None = None) -> torch.Tensor:
        return self.layers(*self.enter(tokens, kv, places), kv, experts)

    def enter(self, tokens: torch.Tensor, kv: KvCache, places: torch.Tensor | None) -> tuple[torch.Tensor, Rotation]:
        """What the layers get: the stream [T, H] and the tokens' rotation, both on their device."""
        rows = tokens if places is None else places
        x = embed(self._embedding, rows).to(self._head.data.device)  # [T, H]; of a table on disk, rows are in RAM
        if self._embedding_scale != 1:
            x *= self._embedding_scale
        return x, self._rope.table(kv.length, len(tokens), x.device)

    def layers(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> torch.Tensor:
        """To the logits [V] after the last token. Adds to the stream in place."""
        for block in self._blocks:
            block(x, rotation, kv, experts)
        return self._finish(self._kernels.linear(self._norm(x[-1:]), self._head)[0])  # [V]


def rms(weight: torch.Tensor, eps: float) -> Norm:
    """A norm with its weight [H]."""
    return lambda x: rms_norm(x, weight, eps)


def pre_norm_decoder(
    config: DecoderConfig,
    weights: Weights,
    kernels: Kernels,
    attention: Attention,
    feed_forward: Callable[[int, Weights], LayerPart],
    rotary_dim: int | None = None,
) -> Decoder:
    """Blocks of attention and feed-forward part, both made of a layer's number and its own weights."""
    blocks = []
    for layer in range(config.num_layers):
        own = weights.at(f"model.layers.{layer}")
        blocks.append(PreNormBlock(layer, attention(layer, own), feed_forward(layer, own)))
    rope = Rope(rotary_dim or config.head_dim, config.rope_theta, config.stretch)
    return Decoder(weights, blocks, rope, rms(weights.vector("model.norm.weight"), config.rms_eps), kernels)
