"""GLM-4.7-Flash: DeepSeek-V3's layers under a configuration of its own. Source: the published configuration."""

from dataclasses import dataclass
from typing import Any

from engine.models import deepseek_v3
from engine.models.hf_config import HfConfig
from engine.models.latent import read_latent
from engine.models.shared_experts import read_shared

weight_shapes, build = deepseek_v3.weight_shapes, deepseek_v3.build


@dataclass(frozen=True)
class Config(deepseek_v3.Config):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("topk_method", "noaux_tc")
        num_layers, first = hf.num_layers(), hf.integer("first_k_dense_replace", 1, minimum=0)
        default = ["dense"] * first + ["sparse"] * (num_layers - first)
        kinds = hf.kinds("mlp_layer_types", num_layers, ("dense", "sparse"), default)
        sparse = [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
        common = read_latent(hf, experts=("n_routed_experts", "num_local_experts"), moe_layers=sparse, eps=1e-5)
        return cls(**common, shared=read_shared(hf, common, renormalise=True))
