"""The frame that nearly every decoder shares: embedding, a stack of the model's own blocks, a last norm, the head."""

from collections.abc import Callable, Sequence

import torch

from engine.kernels.kernels import Kernels
from engine.kv.cache import KvCache
from engine.models.layers import Experts, Rope, Weights, embed, rms_norm

Block = Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor], KvCache, Experts], torch.Tensor]
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
    """Both norms and the projections of `GroupedQueryAttention` in the block of that name."""
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


class Decoder:
    """A `Model`; see there."""

    def __init__(self, weights: Weights, blocks: Sequence[Block], rope: Rope, rms_eps: float, kernels: Kernels) -> None:
        self._embedding = weights.matrix("model.embed_tokens")
        self._head = weights.matrix("lm_head" if weights.has("lm_head") else "model.embed_tokens")
        self._norm = weights.vector("model.norm.weight")
        self._blocks, self._rope, self._rms_eps, self._kernels = blocks, rope, rms_eps, kernels

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts) -> torch.Tensor:
        x = embed(self._embedding, tokens)  # [T, H]
        rope = self._rope.table(kv.length, len(tokens))
        for block in self._blocks:
            x = block(x, rope, kv, experts)
        last = rms_norm(x[-1:], self._norm, self._rms_eps)  # [1, H]
        return self._kernels.linear(last, self._head)[0]  # [V]
