"""Layers of Qwen3-Next and Qwen3.5: three of gated delta rule to one of attention with a gate, each before a mixture.

Source: Qwen team 2025, Qwen3-Next, and the published configuration. The weights of their norms are stored less one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.kernels.delta import DeltaBlockSpec, DeltaSpec
from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import Rotation, Start
from engine.kv.cache import KvCache
from engine.models.attention import attend
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import (
    Block,
    Decoder,
    LayerPart,
    PreNormBlock,
    Shapes,
    StoredLessOne,
    dense,
    frame_of,
    gated_expert_shapes,
    mlp_shapes,
    rms,
)
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights, gated_expert
from engine.models.rope import Rope

_DELTA, _ATTENTION = "linear_attention", "full_attention"


@dataclass(frozen=True)
class GatedConfig(DecoderConfig):
    kinds: tuple[str, ...]  # by layer
    rotary_dim: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    dense_size: int
    shared_size: int
    renormalise: bool

    @property
    def conv_channels(self) -> int:
        """Queries, keys and values one after the other."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def kv_layers(self) -> int:
        return self.kinds.count(_ATTENTION)

    @property
    def state_values(self) -> int:
        own = self.value_heads * self.key_dim * self.value_dim + (self.conv_width - 1) * self.conv_channels
        return self.kinds.count(_DELTA) * own


def read_gated(hf: HfConfig) -> dict[str, Any]:
    """The fields of `GatedConfig` but for `dense_size` and `renormalise`."""
    hf.expect("attention_bias", False)
    common = read_common(hf, moe_layers=hf.sparse_layers(), head_dim=256)
    num_layers, interval = common["num_layers"], hf.integer("full_attention_interval", 4)
    default = [_DELTA if (layer + 1) % interval else _ATTENTION for layer in range(num_layers)]
    key_heads, value_heads = hf.integer("linear_num_key_heads", 16), hf.integer("linear_num_value_heads", 32)
    hf.divisible("linear_num_value_heads", value_heads, "linear_num_key_heads", key_heads)
    return common | {
        "kinds": hf.kinds("layer_types", num_layers, (_DELTA, _ATTENTION), default),
        "rotary_dim": hf.rotary_dim(common["head_dim"], 0.25),
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": hf.integer("linear_key_head_dim", 128),
        "value_dim": hf.integer("linear_value_head_dim", 128),
        "conv_width": hf.integer("linear_conv_kernel_dim", 4, minimum=2),
        "shared_size": hf.integer("shared_expert_intermediate_size"),
    }


def gated_shapes(config: GatedConfig, projection: Callable[[str], Shapes]) -> Shapes:
    """Every dense tensor; `projection` has those of a delta layer's input under the name of its part."""
    hidden, query, key = config.hidden_size, config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes = frame_of(config) | {"model.norm.weight": StoredLessOne((hidden,))}
    for layer, kind in enumerate(config.kinds):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.{name}_layernorm.weight": StoredLessOne((hidden,)) for name in ("input", "post_attention")}
        if kind == _ATTENTION:
            own = f"{block}.self_attn"
            shapes |= {f"{own}.q_proj": (2 * query, hidden), f"{own}.o_proj": (hidden, query)}
            shapes |= {f"{own}.{name}_proj": (key, hidden) for name in "kv"}
            shapes |= {f"{own}.{name}_norm.weight": StoredLessOne((config.head_dim,)) for name in "qk"}
        else:
            own, width = f"{block}.linear_attn", config.value_heads * config.value_dim
            shapes |= projection(own) | {
                f"{own}.conv1d.weight": (config.conv_channels, 1, config.conv_width),
                f"{own}.A_log": (config.value_heads,),
                f"{own}.dt_bias": (config.value_heads,),
                f"{own}.norm.weight": (config.value_dim,),
                f"{own}.out_proj": (hidden, width),
            }
        if layer in config.moe_layers:
            shapes[f"{block}.mlp.gate"] = (config.num_experts, hidden)
            shapes |= gated_expert_shapes(f"{block}.mlp", hidden, config.shared_size)
        else:
            shapes |= mlp_shapes(f"{block}.mlp", hidden, config.dense_size)
    return shapes


class GatedAttention:
    """An `AttentionBlock` whose output is multiplied by a gate that comes with the queries."""

    def __init__(self, config: GatedConfig, weights: Weights, kernels: Kernels) -> None:
        self._config, self._kernels = config, kernels
        self._before, self._after = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        own = weights.at("self_attn")
        self._q, self._k, self._v, self._o = (own.matrix(f"{name}_proj") for name in "qkvo")
        self._q_norm, self._k_norm = own.vector("q_norm.weight"), own.vector("k_norm.weight")

    def __call__(
        self, x: torch.Tensor, rotation: Rotation, keys: torch.Tensor, values: torch.Tensor, start: Start
    ) -> torch.Tensor:
        eps, dim = self._config.rms_eps, self._config.head_dim
        normed = rms_norm(x, self._before, eps)
        q, gate = self._kernels.linear(normed, self._q).view(len(x), -1, 2 * dim).chunk(2, dim=-1)  # [T, Hq, D]
        k, v = (self._kernels.linear(normed, weight).view(len(x), -1, dim) for weight in (self._k, self._v))
        q, k = rms_norm(q, self._q_norm, eps), rms_norm(k, self._k_norm, eps)
        mixed = attend(self._kernels, q, k, v, rotation, (keys, values), start, dim**-0.5)  # [T, Hq * D]
        x += self._kernels.linear(mixed * gate.flatten(1).sigmoid(), self._o)
        return rms_norm(x, self._after, eps)


class DeltaLayer:
    """A `Block`: the gated delta rule over convolved queries, keys and values, and then the feed-forward part."""

    def __init__(
        self,
        layer: int,
        config: GatedConfig,
        weights: Weights,
        kernels: Kernels,
        inputs: Sequence[str],
        feed_forward: LayerPart,
    ) -> None:
        self._layer, self._config, self._feed_forward = layer, config, feed_forward
        own = weights.at("linear_attn")
        taps = own.vector("conv1d.weight").view(config.conv_channels, config.conv_width).t().contiguous()
        rule = DeltaSpec(
            config.key_heads, config.value_heads, config.key_dim, config.value_dim, taps, -own.vector("A_log").exp(),
            own.vector("dt_bias"), own.vector("norm.weight"), config.rms_eps,
        )  # fmt: skip
        norms = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        self._rule = kernels.delta_block(
            DeltaBlockSpec(rule, tuple(own.matrix(name) for name in inputs), own.matrix("out_proj"), *norms)
        )

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        config = self._config
        now, following = kv.state(
            self._layer,
            (config.conv_width - 1, config.conv_channels),
            (config.value_heads, config.key_dim, config.value_dim),
        )
        x += self._feed_forward(self._rule(x, now, following), experts)


class Mixture:
    """Router, experts and the shared one."""

    def __init__(self, layer: int, config: GatedConfig, weights: Weights, kernels: Kernels) -> None:
        self._layer = layer
        self._route = kernels.router(weights.matrix("gate"), config.top_k, renormalise=config.renormalise)
        self._shared = gated_expert(weights, kernels)

    def __call__(self, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        return experts(self._layer, x, *self._route(x)) + self._shared(x)


def gated_decoder(config: GatedConfig, weights: Weights, kernels: Kernels, inputs: Sequence[str]) -> Decoder:
    """`inputs` are the names of a delta layer's input matrices, see `DeltaBlockSpec`."""
    blocks: list[Block] = []
    for layer, kind in enumerate(config.kinds[: config.num_layers]):
        own = weights.at(f"model.layers.{layer}")
        mlp = own.at("mlp")
        part = Mixture(layer, config, mlp, kernels) if layer in config.moe_layers else dense(mlp, kernels)
        if kind == _ATTENTION:
            blocks.append(PreNormBlock(layer, GatedAttention(config, own, kernels), part))
        else:
            blocks.append(DeltaLayer(layer, config, own, kernels, inputs, part))
    rope = Rope(config.rotary_dim, config.rope_theta, config.stretch)
    return Decoder(weights, blocks, rope, rms(weights.vector("model.norm.weight"), config.rms_eps), kernels)
