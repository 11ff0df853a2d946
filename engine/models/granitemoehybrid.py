"""Granite 4.0 and 4.0-H (Tiny, Small): Granite-MoE's layers, most with Mamba-2 in place of attention, the others not turned.

Releases without experts have only the one that every token goes through, which then is a layer's single expert. Source: IBM
2025, the published configurations.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.kernels.spec import Rotation
from engine.kv.cache import KvCache
from engine.models import granitemoe
from engine.models.attention import fused
from engine.models.config import read_common
from engine.models.decoder import Block, Decoder, LayerPart, PreNormBlock, Shapes, attention_shapes, frame_of, norm_shapes
from engine.models.granitemoe import Mixture, granite_decoder, mixture_shapes, read_own
from engine.models.hf_config import HfConfig
from engine.models.layers import Experts, Weights
from engine.models.llama import only_expert
from engine.models.mamba import Mamba, MambaSizes, mamba_shapes, read_mamba
from engine.models.rope import PartScaling, Rope

_MAMBA = ("mamba", "linear_attention")  # as published, and as transformers 5 writes it
_KINDS = (*_MAMBA, "attention", "full_attention")


@dataclass(frozen=True)
class Config(granitemoe.Config):
    is_mamba: tuple[bool, ...]  # by layer
    mamba: MambaSizes
    is_turned: bool  # attention has rotary embedding
    has_router: bool

    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("position_embedding_type", None, "nope", "rope")
        hf.expect("normalization_function", "rmsnorm")
        has_router = hf.integer("num_local_experts", 8, minimum=0) > 0
        if not has_router:
            whole = {"num_local_experts": 1, "num_experts_per_tok": 1}
            hf = HfConfig(values | whole, name)
        expert_size = "intermediate_size" if has_router else "shared_intermediate_size"
        common = read_common(hf, experts=("num_local_experts",), expert_size=expert_size)
        key = "layer_types" if values.get("layer_types") is not None else "layers_block_type"
        kinds = hf.kinds(key, common["num_layers"], _KINDS, _MAMBA[:1] * common["num_layers"])
        return cls(
            **common | read_own(hf, shared_size=1024),
            is_mamba=tuple(kind in _MAMBA for kind in kinds),
            mamba=read_mamba(hf, common["hidden_size"]),
            is_turned=values.get("position_embedding_type") == "rope",
            has_router=has_router,
        )

    @property
    def kv_layers(self) -> int:
        return self.is_mamba.count(False)

    @property
    def state_values(self) -> int:
        return self.is_mamba.count(True) * self.mamba.state_values


def weight_shapes(config: Config) -> Shapes:
    """Published name and shape of every dense tensor."""
    shapes = frame_of(config)
    for layer, is_mamba in enumerate(config.is_mamba):
        block = f"model.layers.{layer}"
        if is_mamba:
            shapes |= norm_shapes(block, config.hidden_size) | mamba_shapes(f"{block}.mamba", config.hidden_size, config.mamba)
        else:
            shapes |= attention_shapes(block, config, biases="qkvo" if config.has_bias else "")
        if config.has_router:
            shapes |= mixture_shapes(block, config)
    return shapes


class MambaBlock:
    """A `Block`: Mamba-2 and then the feed-forward part."""

    def __init__(self, layer: int, config: Config, weights: Weights, kernels: Kernels, feed_forward: LayerPart) -> None:
        self._mamba = Mamba(layer, config.mamba, config.rms_eps, weights.at("mamba"), kernels)
        self._before, self._after = (weights.vector(f"{name}_layernorm.weight") for name in ("input", "post_attention"))
        self._eps, self._feed_forward = config.scaled_eps, feed_forward

    def __call__(self, x: torch.Tensor, rotation: Rotation, kv: KvCache, experts: Experts) -> None:
        x += self._mamba(rms_norm(x, self._before, self._eps), kv)
        x += self._feed_forward(rms_norm(x, self._after, self._eps), experts)


def build(config: Config, weights: Weights, kernels: Kernels) -> Decoder:
    attention = fused(replace(config, rms_eps=config.scaled_eps), kernels, scale=config.attention_multiplier)
    blocks: list[Block] = []
    for layer, is_mamba in enumerate(config.is_mamba[: config.num_layers]):
        own = weights.at(f"model.layers.{layer}")
        part: LayerPart = Mixture(layer, config, own, kernels) if config.has_router else only_expert(layer)
        if is_mamba:
            blocks.append(MambaBlock(layer, config, own, kernels, part))
        else:
            blocks.append(PreNormBlock(layer, attention(layer, own), part))
    stretch = config.stretch if config.is_turned else PartScaling(share=0.0)  # which turns nothing
    return granite_decoder(config, weights, kernels, blocks, Rope(config.head_dim, config.rope_theta, stretch))
