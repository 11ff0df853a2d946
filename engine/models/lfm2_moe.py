"""LFM2 MoE (LFM2-8B-A1B and its successors): short convolutions with some attention between, routing by sigmoid.

Source: Liquid AI 2025, LFM2 technical report, and the published configuration.
"""

from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.delta import short_conv
from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import AttentionBlock, AttentionSpec, Rotation
from engine.kv.cache import KvCache
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Block, Decoder, LayerPart, PreNormBlock, Shapes, frame_of, rms, swiglu_shapes
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.rope import Rope
from engine.models.routing import sigmoid_router

_CONV, _ATTENTION = "conv", "full_attention"
_PARTS = ("w1", "w3", "w2")  # gate, up, down


@dataclass(frozen=True)
class Config(DecoderConfig):
    kinds: tuple[str, ...]  # by layer
    conv_width: int
    has_conv_bias: bool
    dense_size: int
    has_routing_bias: bool
    renormalise: bool
    routed_scale: float

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        dense_layers = hf.integer("num_dense_layers", 2, minimum=0)
        common = read_common(
            hf, moe_layers=range(dense_layers, hf.num_layers()), theta=1e6, eps=1e-5, eps_key="norm_eps",
            tied=hf.flag("tie_embedding", True),
        )  # fmt: skip
        return cls(
            **common,
            kinds=hf.kinds("layer_types", common["num_layers"], (_CONV, _ATTENTION), ()),
            conv_width=hf.integer("conv_L_cache", 3, minimum=2),
            has_conv_bias=hf.flag("conv_bias", False),
            dense_size=hf.integer("intermediate_size"),
            has_routing_bias=hf.flag("use_expert_bias", True),
            renormalise=hf.flag("norm_topk_prob", True),
            routed_scale=hf.positive("routed_scaling_factor", 1.0),
        )

    @property
    def kv_layers(self) -> int:
        return self.kinds.count(_ATTENTION)

    @property
    def state_values(self) -> int:
        return self.kinds.count(_CONV) * (self.conv_width - 1) * self.hidden_size


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    hidden, query, key = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = frame_of(config)
    shapes["model.embedding_norm.weight"] = shapes.pop("model.norm.weight")
    for layer, kind in enumerate(config.kinds):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.operator_norm.weight": (hidden,), f"{block}.ffn_norm.weight": (hidden,)}
        if kind == _ATTENTION:
            for name, shape in {"q": (query, hidden), "k": (key, hidden), "v": (key, hidden), "out": (hidden, query)}.items():
                shapes[f"{block}.self_attn.{name}_proj"] = shape
            shapes |= {f"{block}.self_attn.{name}_layernorm.weight": (config.head_dim,) for name in "qk"}
        else:
            shapes[f"{block}.conv.conv.weight"] = (hidden, 1, config.conv_width)
            shapes[f"{block}.conv.in_proj"], shapes[f"{block}.conv.out_proj"] = (3 * hidden, hidden), (hidden, hidden)
            if config.has_conv_bias:
                shapes[f"{block}.conv.conv.bias"] = shapes[f"{block}.conv.out_proj.bias"] = (hidden,)
                shapes[f"{block}.conv.in_proj.bias"] = (3 * hidden,)
        part = f"{block}.feed_forward"
        if layer not in config.moe_layers:
            parts = zip(_PARTS, swiglu_shapes(hidden, config.dense_size), strict=True)
            shapes |= {f"{part}.{name}": shape for name, shape in parts}
            continue
        shapes[f"{part}.gate"] = (config.num_experts, hidden)
        if config.has_routing_bias:
            shapes[f"{part}.expert_bias"] = (config.num_experts,)
    return shapes


def attention(config: Config, weights: Weights, kernels: Kernels) -> AttentionBlock:
    own = weights.at("self_attn")
    return kernels.attention_block(
        AttentionSpec(
            own.matrix("q_proj"), own.matrix("k_proj"), own.matrix("v_proj"), own.matrix("out_proj"),
            config.num_heads, config.num_kv_heads, config.head_dim,
            weights.vector("operator_norm.weight"), weights.vector("ffn_norm.weight"), config.rms_eps, config.head_dim**-0.5,
            q_norm=own.vector("q_layernorm.weight"), k_norm=own.vector("k_layernorm.weight"),
        )
    )  # fmt: skip


class ConvBlock:
    """A convolution between two gates that follow from the input, and the feed-forward part."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels, feed_forward: LayerPart) -> None:
        self._layer, self._config, self._kernels, self._feed_forward = layer, config, kernels, feed_forward
        self._before, self._after = weights.vector("operator_norm.weight"), weights.vector("ffn_norm.weight")
        own = weights.at("conv")
        self._in, self._out = own.matrix("in_proj"), own.matrix("out_proj")
        self._taps = own.vector("conv.weight").view(config.hidden_size, config.conv_width).t().contiguous()
        self._bias = own.vector("conv.bias") if config.has_conv_bias else None

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        (past,), (following,) = kv.state(self._layer, (self._config.conv_width - 1, self._config.hidden_size))
        normed = rms_norm(x, self._before, self._config.rms_eps)
        into, out_of, value = self._kernels.linear(normed, self._in).chunk(3, dim=-1)  # [T, H]
        mixed = short_conv(into * value, past, following, self._taps)
        if self._bias is not None:
            mixed += self._bias
        x += self._kernels.linear(out_of * mixed, self._out)
        x += self._feed_forward(rms_norm(x, self._after, self._config.rms_eps), experts)


class FeedForward:
    """Router and experts."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        own = weights.at("feed_forward")
        self._route = sigmoid_router(
            kernels, own.matrix("gate"), own.vector("expert_bias") if config.has_routing_bias else None, config.top_k,
            renormalise=config.renormalise, scale=config.routed_scale, epsilon=1e-6,
        )  # fmt: skip

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x))


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    def feed_forward(layer: int, own: Weights) -> LayerPart:
        if layer in config.moe_layers:
            return FeedForward(layer, config, own, kernels)
        mlp = kernels.swiglu(*(own.matrix(f"feed_forward.{part}") for part in _PARTS))
        return lambda x, _: mlp(x)

    blocks: list[Block] = []
    for layer, kind in enumerate(config.kinds[: config.num_layers]):
        own = weights.at(f"model.layers.{layer}")
        part = feed_forward(layer, own)
        if kind == _ATTENTION:
            blocks.append(PreNormBlock(layer, attention(config, own, kernels), part))
        else:
            blocks.append(ConvBlock(layer, config, own, kernels, part))
    norm = rms(weights.vector("model.embedding_norm.weight"), config.rms_eps)
    return Decoder(weights, blocks, Rope(config.head_dim, config.rope_theta, config.stretch), norm, kernels)
