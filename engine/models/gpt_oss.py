"""gpt-oss (20b, 120b): attention with sinks, every other layer over a window, YaRN; clamped experts with biases.

Source: OpenAI 2025, gpt-oss model card, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.weights import Activation, ExpertMath
from engine.models.attention import fused
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Decoder, Shapes, attention_shapes, frame_of, pre_norm_decoder
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights

_ACTIVATION_ALPHA = 1.702  # of the published modelling code; no config key
_WINDOW, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Config(DecoderConfig):
    windows: tuple[int | None, ...]  # by layer
    activation_limit: float

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        common = read_common(
            hf, experts=("num_local_experts",), expert_size="intermediate_size", theta=150_000.0, eps=1e-5, head_dim=64
        )
        num_layers, window = common["num_layers"], hf.optional_integer("sliding_window")
        kinds = hf.kinds("layer_types", num_layers, (_WINDOW, _FULL), [_WINDOW, _FULL] * ((num_layers + 1) // 2))
        return cls(
            **common,
            windows=tuple(window if kind == _WINDOW else None for kind in kinds),
            activation_limit=hf.positive("swiglu_limit", 7.0),
        )

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return self.windows

    @property
    def math(self) -> ExpertMath:
        return ExpertMath(Activation.GPT_OSS, _ACTIVATION_ALPHA, self.activation_limit)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer in range(config.num_layers):
        block = f"model.layers.{layer}"
        shapes |= attention_shapes(block, config, biases="qkvo")
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
    attention = fused(config, kernels, config.windows)
    return pre_norm_decoder(config, weights, kernels, attention, lambda layer, own: FeedForward(layer, config, own, kernels))
