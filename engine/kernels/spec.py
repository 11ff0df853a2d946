"""What a model asks of the kernels for a whole part of a layer: attention with its norms and cache, the router.

A spec names weights and constants once; the kernels make a function of it that the model then calls for every pass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.weights import Weight

Rotation = tuple[torch.Tensor, torch.Tensor]  # cosine and sine [T, R / 2] of the first R values of each head
Start = int | torch.Tensor
"""The row of the first new token. As an int64 tensor [1] on the device, for a single token: then rows behind it are looked at
too, without effect, so that no shape depends on it."""
FeedForward = Callable[[torch.Tensor], torch.Tensor]  # x [T, H] to [T, H]
Router = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # x [T, H] to ids int32 [T, k] and weights fp32 [T, k]


@dataclass(frozen=True, eq=False)
class AttentionSpec:
    """Grouped-query attention between two norms: x += o(attention(q, k, v of input_norm(x))).

    The norms of queries and keys are per head and optional, as are sinks [Hq]: logits that join the softmax and add no value.
    """

    q: Weight  # [Hq * D, H]
    k: Weight  # [Hkv * D, H]
    v: Weight  # [Hkv * D, H]
    o: Weight  # [H, Hq * D]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    input_norm: torch.Tensor  # fp32 [H]
    post_norm: torch.Tensor  # fp32 [H]
    eps: float
    scale: float
    q_norm: torch.Tensor | None = None  # fp32 [D]
    k_norm: torch.Tensor | None = None  # fp32 [D]
    sinks: torch.Tensor | None = None  # fp32 [Hq]
    window: int | None = None
    softcap: float = 0.0


class AttentionBlock(Protocol):
    """Not thread-safe."""

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start
    ) -> torch.Tensor:
        """Adds to the stream x fp32 [T, H] in place and returns its post_norm [T, H].

        Writes positions `start` to start + T of keys and values [Hkv, capacity, D], kept as `engine.kernels.kept` tells, and
        reads all before.
        """
