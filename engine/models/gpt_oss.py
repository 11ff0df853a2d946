"""gpt-oss (20b, 120b): attention with sinks, every other layer over a window, YaRN; clamped experts with biases.

Source: OpenAI 2025, gpt-oss model card, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.weights import Activation, ExpertMath
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_shapes, gqa_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, YarnScaling

_ACTIVATION_ALPHA = 1.702  # of the published modelling code; no config key


@dataclass(frozen=True)
class Config:
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    expert_size: int
    rms_eps: float
    rope_theta: float
    yarn: YarnScaling | None
    windows: tuple[int | None, ...]  # by layer
    activation_limit: float
    tied: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        heads, kv_heads = hf.integer("num_attention_heads"), hf.integer("num_key_value_heads")
        hf.divisible("num_attention_heads", heads, "num_key_value_heads", kv_heads)
        num_layers, window = hf.num_layers(), hf.optional_integer("sliding_window")
        kinds = values.get("layer_types") or ["sliding_attention", "full_attention"] * ((num_layers + 1) // 2)
        if len(kinds) < num_layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise hf.error(
                f"layer_types names {len(kinds)} layers of {sorted(set(map(str, kinds)))}, not {num_layers} known ones"
            )
        theta, yarn = hf.rope(150_000.0)
        return cls(
            vocab_size=hf.integer("vocab_size"),
            hidden_size=hf.integer("hidden_size"),
            num_layers=num_layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=hf.integer("head_dim", 64),
            num_experts=hf.integer("num_local_experts"),
            top_k=hf.integer("num_experts_per_tok"),
            expert_size=hf.integer("intermediate_size"),
            rms_eps=hf.positive("rms_norm_eps", 1e-5),
            rope_theta=theta,
            yarn=yarn,
            windows=tuple(window if kind == "sliding_attention" else None for kind in kinds[:num_layers]),
            activation_limit=hf.positive("swiglu_limit", 7.0),
            tied=hf.flag("tie_word_embeddings", False),
        )

    @property
    def moe_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_layers))

    @property
    def math(self) -> ExpertMath:
        return ExpertMath(Activation.GPT_OSS, _ACTIVATION_ALPHA, self.activation_limit)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_shapes(config.vocab_size, config.hidden_size, tied=config.tied)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim, bias=True)
        shapes[f"{block}.self_attn.sinks"] = (config.num_heads,)
        shapes[f"{block}.mlp.router"] = (config.num_experts, config.hidden_size)
        shapes[f"{block}.mlp.router.bias"] = (config.num_experts,)
    return shapes


class FeedForward:
    """Router with bias, whose softmax is over the chosen experts alone, and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("mlp.router"), config.top_k, renormalise=True)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    windows = config.windows
    return gqa_decoder(config, weights, kernels, windows, lambda layer, own: FeedForward(layer, config, own, kernels))
