"""DeepSeek-V4 (Flash, Pro): four residual streams, attention to a window and to compressed entries, experts of the first layers
chosen by the token's number. What guesses further tokens is not loaded.

Source: DeepSeek-AI 2026, DeepSeek-V4, and the published configuration and weights.
"""

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.reference import activate, rms_norm
from engine.kernels.spec import Rotation
from engine.kv.cache import KvCache
from engine.models.compressed_attention import CompressedAttention, attention_shapes
from engine.models.decoder import Shapes, Table, frame_of, swiglu_shapes
from engine.models.deepseek_v4_config import Config
from engine.models.hyper_connections import HyperConnection, collapse, collapse_shapes, connection_shapes
from engine.models.layers import Experts, Weights, embed
from engine.models.rope import Rope

__all__ = ["Config", "build", "weight_shapes"]

_PARTS = ("w1", "w3", "w2")  # gate, up, down


def weight_shapes(config: Config) -> Shapes:
    """Name and shape of every dense tensor, as `published` has them."""
    hidden = config.hidden_size
    shapes = frame_of(config) | collapse_shapes("model.hc_head", config.streams, hidden)
    for layer, kept in enumerate(config.kept_compressed):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.attn_norm.weight": (hidden,), f"{block}.ffn_norm.weight": (hidden,)}
        shapes |= attention_shapes(f"{block}.attn", config.attention, kept)
        for part in ("attn", "ffn"):
            shapes |= connection_shapes(f"{block}.hc_{part}", config.streams, hidden)
        shapes[f"{block}.ffn.gate"] = (config.num_experts, hidden)
        if config.is_hashed(layer):
            shapes[f"{block}.ffn.gate.tid2eid"] = Table((config.vocab_size, config.top_k), config.num_experts)
        else:
            shapes[f"{block}.ffn.gate.e_score_correction_bias"] = (config.num_experts,)
        shared = zip(_PARTS, swiglu_shapes(hidden, config.shared_size), strict=True)
        shapes |= {f"{block}.ffn.shared_experts.{name}": shape for name, shape in shared}
    return shapes


class FeedForward:
    """Router, experts and the shared one: x [T, H] of tokens [T] to [T, H]."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer, self._config, self._kernels = layer, config, kernels
        self._router = weights.matrix("gate")
        self._bias = None if config.is_hashed(layer) else weights.vector("gate.e_score_correction_bias")
        if self._bias is None:
            self._table = weights.table("gate.tid2eid")
        self._gate, self._up, self._down = (weights.matrix(f"shared_experts.{part}") for part in _PARTS)

    def __call__(self, x: torch.Tensor, tokens: torch.Tensor, experts: Experts) -> torch.Tensor:
        y = experts(self._layer, x, *self._route(x, tokens))
        linear = self._kernels.linear
        return y + linear(activate(self._config.math, linear(x, self._gate), linear(x, self._up)), self._down)

    def _route(self, x: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights follow from the scores alone, whatever has chosen the experts."""
        scores = F.softplus(self._kernels.linear(x, self._router)).sqrt()  # [T, E]
        if self._bias is not None:
            ids = (scores + self._bias).topk(self._config.top_k, dim=-1).indices  # [T, k]
        else:
            ids = self._table[tokens.to(x.device)].long()
        weights = scores.gather(1, ids)
        return ids.int(), weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * self._config.routed_scale


class StreamBlock:
    """Attention and the feed-forward part, each between the streams. `is_far` says which rotation is the layer's."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels, far: Rope) -> None:
        self._config, self._kept = config, config.kept_compressed[layer]
        self.is_far = self._kept is not None
        self._attention = CompressedAttention(layer, config.attention, self._kept, weights.at("attn"), kernels, far)
        self._feed_forward = FeedForward(layer, config, weights.at("ffn"), kernels)
        self._norms = [weights.vector(f"{part}_norm.weight") for part in ("attn", "ffn")]
        self._around = [HyperConnection(f"hc_{part}", config.streams, weights, kernels) for part in ("attn", "ffn")]

    def __call__(
        self, x: torch.Tensor, rotations: tuple[Rotation, Rotation], tokens: torch.Tensor, kv: KvCache, experts: Experts
    ) -> None:
        """Streams x [T, S, H] in place."""
        before, after = self._norms
        eps = self._config.rms_eps
        rotation = rotations[self.is_far]
        self._around[0](x, lambda read: self._attention(rms_norm(read, before, eps), rotation, kv))
        self._around[1](x, lambda read: self._feed_forward(rms_norm(read, after, eps), tokens, experts))


class StreamDecoder:
    """A `Model`; see there."""

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._config, self._kernels = config, kernels
        self._embedding = weights.matrix("model.embed_tokens")
        self._head = weights.matrix("lm_head" if weights.has("lm_head") else "model.embed_tokens")
        self._norm = weights.vector("model.norm.weight")
        self._collapse = collapse("model.hc_head", config.streams, weights, kernels)
        self._near = Rope(config.turned_dim, config.rope_theta)
        self._far = Rope(config.turned_dim, config.far_theta, config.far_stretch)
        self._blocks = [
            StreamBlock(layer, config, weights.at(f"model.layers.{layer}"), kernels, self._far)
            for layer in range(config.num_layers)
        ]

    def __call__(self, tokens: torch.Tensor, kv: KvCache, experts: Experts, places: torch.Tensor | None = None) -> torch.Tensor:
        x = embed(self._embedding, tokens if places is None else places).to(self._head.data.device)  # [T, H]
        x = x[:, None].repeat(1, self._config.streams.count, 1)  # [T, S, H]
        near, far = (rope.table(kv.length, len(tokens), x.device) for rope in (self._near, self._far))
        for block in self._blocks:
            block(x, (near, far), tokens, kv, experts)
        return self._kernels.linear(rms_norm(self._collapse(x[-1:]), self._norm, self._config.rms_eps), self._head)[0]  # [V]


def build(config: Config, weights: Weights, kernels: Kernels) -> StreamDecoder:
    return StreamDecoder(config, weights, kernels)
