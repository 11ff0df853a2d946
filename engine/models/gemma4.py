"""Gemma 4 (26B-A4B), its text: a dense part and a mixture side by side, layers over a window and over all with other heads.

Source: Google 2026, Gemma 4 model card, and the published configuration. Layers over all have one matrix for keys and values.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import Rotation
from engine.kernels.weights import Activation, ExpertMath
from engine.kv.cache import KvCache
from engine.models.attention import attend
from engine.models.config import DecoderConfig, read_common
from engine.models.decoder import Block, Decoder, Shapes, frame_of, mlp_shapes, rms
from engine.models.hf_config import HfConfig
from engine.models.layers import SWIGLU_PARTS, Experts, Weights
from engine.models.rope import Rope, Scaling

_WINDOW, _FULL = "sliding_attention", "full_attention"
_NORMS = (
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
    "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2",
)  # fmt: skip


@dataclass(frozen=True)
class Config(DecoderConfig):
    """Heads, rotation and cache are those of the layers over a window, where no other is told."""

    kinds: tuple[str, ...]  # by layer
    window: int
    full_kv_heads: int
    full_head_dim: int
    full_theta: float
    full_stretch: Scaling | None
    is_key_value: bool  # in layers over all
    dense_size: int
    softcap: float  # of logits; 0 for none

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("hidden_activation", "gelu_pytorch_tanh")
        hf.expect("enable_moe_block", True)
        hf.expect("attention_bias", False)
        hf.expect("num_kv_shared_layers", 0)
        hf.expect("hidden_size_per_layer_input", 0)
        hf.expect("use_bidirectional_attention", None, "vision")  # of text alone the latter is causal too
        common = read_common(hf, experts=("num_experts",), top_k="top_k_experts", tied=True, head_dim=256)
        default = [_FULL if (layer + 1) % 6 == 0 else _WINDOW for layer in range(common["num_layers"])]
        kinds = hf.kinds("layer_types", common["num_layers"], (_WINDOW, _FULL), default)
        theta, stretch = hf.within("rope_parameters", _WINDOW).rope(10_000.0)
        full_theta, full_stretch = hf.within("rope_parameters", _FULL).rope(1_000_000.0, ("proportional",))
        is_key_value = hf.flag("attention_k_eq_v", False)
        kv_heads = common["num_kv_heads"]
        full = hf.within("per_layer_config", str(kinds.index(_FULL) if _FULL in kinds else 0))  # as transformers 5 saves
        full_kv_heads = hf.integer("num_global_key_value_heads", kv_heads) if is_key_value else kv_heads
        full_kv_heads = full.integer("num_key_value_heads", full_kv_heads)
        full_head_dim = full.integer("head_dim", hf.integer("global_head_dim", 512))
        hf.divisible("num_attention_heads", common["num_heads"], "num_global_key_value_heads", full_kv_heads)
        if full_kv_heads * full_head_dim > kv_heads * common["head_dim"]:
            raise hf.error(f"layers over all keep {full_kv_heads} x {full_head_dim} values of a token, more than the others")
        return cls(
            **common | {"rope_theta": theta, "stretch": stretch},
            kinds=kinds,
            window=hf.integer("sliding_window", 512),
            full_kv_heads=full_kv_heads,
            full_head_dim=full_head_dim,
            full_theta=full_theta,
            full_stretch=full_stretch,
            is_key_value=is_key_value,
            dense_size=hf.integer("intermediate_size"),
            softcap=hf.number("final_logit_softcapping", 0.0),
        )

    @property
    def kept_windows(self) -> tuple[int | None, ...]:
        return tuple(self.window if kind == _WINDOW else None for kind in self.kinds)

    @property
    def math(self) -> ExpertMath:
        return ExpertMath(Activation.GELU_TANH)


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes, hidden = frame_of(config), config.hidden_size
    for layer, kind in enumerate(config.kinds):
        block = f"model.layers.{layer}"
        full = kind == _FULL
        dim = config.full_head_dim if full else config.head_dim
        query, key = config.num_heads * dim, (config.full_kv_heads if full else config.num_kv_heads) * dim
        shapes |= {f"{block}.self_attn.q_proj": (query, hidden), f"{block}.self_attn.o_proj": (hidden, query)}
        for name in "k" if full and config.is_key_value else "kv":
            shapes[f"{block}.self_attn.{name}_proj"] = (key, hidden)
        shapes |= {f"{block}.self_attn.{name}_norm.weight": (dim,) for name in "qk"}
        shapes |= {f"{block}.{name}.weight": (hidden,) for name in _NORMS} | {f"{block}.layer_scalar": (1,)}
        shapes |= mlp_shapes(f"{block}.mlp", hidden, config.dense_size)
        shapes[f"{block}.router.proj"] = (config.num_experts, hidden)
        shapes |= {f"{block}.router.scale": (hidden,), f"{block}.router.per_expert_scale": (config.num_experts,)}
    return shapes


class Attention:
    """Normed x [T, H] to [T, H]. Queries and keys have unit length times a weight, and so their product needs no scale."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels) -> None:
        self._layer, self._kernels, self._eps = layer, kernels, config.rms_eps
        full = config.kinds[layer] == _FULL
        self._window = None if full else config.window
        self._kv_heads = config.full_kv_heads if full else config.num_kv_heads
        self._dim = config.full_head_dim if full else config.head_dim
        self._q, self._k, self._o = (weights.matrix(f"{name}_proj") for name in "qko")
        self._v = weights.matrix("v_proj") if weights.has("v_proj") else None
        self._q_norm, self._k_norm = (weights.vector(f"{name}_norm.weight") for name in "qk")

    def __call__(self, normed: torch.Tensor, rotation: Rotation, kv: KvCache) -> torch.Tensor:
        q, k = (self._kernels.linear(normed, weight).view(len(normed), -1, self._dim) for weight in (self._q, self._k))
        v = k if self._v is None else self._kernels.linear(normed, self._v).view(k.shape)
        q, k = rms_norm(q, self._q_norm, self._eps), rms_norm(k, self._k_norm, self._eps)
        v = F.rms_norm(v, (self._dim,), eps=self._eps)
        keys, values, start = kv.layer(self._layer, len(normed), self._kv_heads, self._dim)
        mixed = attend(self._kernels, q, k, v, rotation, (keys, values), start, 1.0, self._window)
        return self._kernels.linear(mixed, self._o)


class Gemma4Block:
    """A `Block`. `rope` is that of a layer over all; the others use the decoder's."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels, rope: Rope | None) -> None:
        self._layer, self._eps, self._kernels, self._rope = layer, config.rms_eps, kernels, rope
        self._attention = Attention(layer, config, weights.at("self_attn"), kernels)
        self._norms = {name: weights.vector(f"{name}.weight") for name in _NORMS}
        self._gate, self._up, self._down = (weights.matrix(f"mlp.{part}") for part in SWIGLU_PARTS)
        self._route = kernels.router(weights.matrix("router.proj"), config.top_k, renormalise=True)
        self._router_scale = weights.vector("router.scale") * config.hidden_size**-0.5
        self._expert_scale, self._layer_scale = weights.vector("router.per_expert_scale"), float(weights.vector("layer_scalar"))

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        turned = rotation if self._rope is None else self._rope.table(kv.length, len(x), x.device)
        mixed = self._attention(self._normed(x, "input_layernorm"), turned, kv)
        x += self._normed(mixed, "post_attention_layernorm")
        dense = self._normed(self._mlp(self._normed(x, "pre_feedforward_layernorm")), "post_feedforward_layernorm_1")
        ids, weights = self._route(rms_norm(x, self._router_scale, self._eps))
        weights = weights * self._expert_scale[ids.long()]
        routed = experts(self._layer, self._normed(x, "pre_feedforward_layernorm_2"), ids, weights)
        both = dense + self._normed(routed, "post_feedforward_layernorm_2")
        x += self._normed(both, "post_feedforward_layernorm")
        x *= self._layer_scale

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return rms_norm(x, self._norms[name], self._eps)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate = F.gelu(self._kernels.linear(x, self._gate), approximate="tanh")
        return self._kernels.linear(gate * self._kernels.linear(x, self._up), self._down)


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    full = Rope(config.full_head_dim, config.full_theta, config.full_stretch)
    blocks: list[Block] = [
        Gemma4Block(layer, config, weights.at(f"model.layers.{layer}"), kernels, full if kind == _FULL else None)
        for layer, kind in enumerate(config.kinds[: config.num_layers])
    ]

    def finish(logits: torch.Tensor) -> torch.Tensor:
        return (logits / config.softcap).tanh() * config.softcap if config.softcap else logits

    return Decoder(
        weights, blocks, Rope(config.head_dim, config.rope_theta, config.stretch),
        rms(weights.vector("model.norm.weight"), config.rms_eps), kernels,
        embedding_scale=math.sqrt(config.hidden_size), finish=finish,
    )  # fmt: skip
