"""Phi-3.5-MoE: LayerNorm with bias, LongRoPE, two experts chosen one after the other.

Source: Abdin et al. 2024, Phi-3 technical report; Liu et al. 2024, GRIN (the router), and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.spec import Rotation, Router, Start
from engine.kernels.weights import Weight
from engine.models.attention import attend
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Norm, PreNormBlock, Shapes, attention_shapes, frame_of
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.rope import Rope


@dataclass(frozen=True)
class Config(DecoderConfig):
    has_bias: bool  # of attention's projections
    has_head_bias: bool
    window: int | None
    jitter: float

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("num_experts_per_tok", 2)
        common = read_common(
            hf, experts=("num_local_experts",), expert_size="intermediate_size", theta=1e6, eps=1e-5, stretches=("longrope",)
        )
        return cls(
            **common,
            has_bias=hf.flag("attention_bias", False),
            has_head_bias=hf.flag("lm_head_bias", False),
            window=hf.optional_integer("sliding_window"),
            jitter=hf.positive("router_jitter_noise", 0.01),
        )

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return (self.window,) * self.num_layers


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config) | {"model.norm.bias": (config.hidden_size,)}
    if config.has_head_bias:
        shapes["lm_head.bias"] = (config.vocab_size,)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkvo" if config.has_bias else "")
        shapes |= {f"{block}.{name}_layernorm.bias": (config.hidden_size,) for name in ("input", "post_attention")}
        shapes[f"{block}.block_sparse_moe.gate"] = (config.num_experts, config.hidden_size)
    return shapes


def layer_norm(weights: Weights, name: str, eps: float) -> Norm:
    weight, bias = weights.vector(f"{name}.weight"), weights.vector(f"{name}.bias")
    return lambda x: F.layer_norm(x, weight.shape, weight, bias, eps)


class Attention:
    """An `AttentionBlock` between LayerNorms."""

    def __init__(self, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._config, self._kernels = config, kernels
        self._before, self._after = (
            layer_norm(weights, f"{name}_layernorm", config.rms_eps) for name in ("input", "post_attention")
        )
        self._q, self._k, self._v, self._o = (weights.matrix(f"self_attn.{name}_proj") for name in "qkvo")

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start
    ) -> torch.Tensor:
        normed, dim = self._before(x), self._config.head_dim
        q, k, v = (self._kernels.linear(normed, weight).view(len(x), -1, dim) for weight in (self._q, self._k, self._v))
        mixed = attend(self._kernels, q, k, v, rotation, (keys, values), start, dim**-0.5, self._config.window)
        x += self._kernels.linear(mixed, self._o)
        return self._after(x)


def router(kernels: Kernels, weight: Weight, jitter: float) -> Router:
    """The best expert, then the best of the others, each weighted by a softmax over those that come close to it."""

    def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = kernels.linear(x, weight)  # [T, E]
        left, ids, weights = scores, [], []
        for _ in range(2):
            best, chosen = left.max(dim=-1, keepdim=True)  # [T, 1]
            is_far = (best - scores) / torch.maximum(scores.abs(), best) > 2 * jitter
            weights.append(left.masked_fill(is_far, float("-inf")).softmax(dim=-1).gather(1, chosen))
            ids.append(chosen)
            left = left.scatter(1, chosen, float("-inf"))
        return torch.cat(ids, dim=1).int(), torch.cat(weights, dim=1)

    return route


class FeedForward:
    """Router and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = router(kernels, weights.matrix("block_sparse_moe.gate"), config.jitter)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    blocks = []
    for layer in range(config.num_layers):
        own = weights.at(f"model.layers.{layer}")
        attention, experts = Attention(config, own, kernels), FeedForward(layer, config, own, kernels)
        blocks.append(PreNormBlock(layer, attention, experts))
    rope = Rope(config.head_dim, config.rope_theta, config.stretch)
    return Decoder(weights, blocks, rope, layer_norm(weights, "model.norm", config.rms_eps), kernels)
