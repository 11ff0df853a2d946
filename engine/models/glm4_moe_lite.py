"""GLM-4.7-Flash: DeepSeek-V3's layers under a configuration of its own. Source: the published configuration."""

from dataclasses import dataclass
from typing import Any

from engine.models import deepseek_v3
from engine.models.hf_config import HfConfig
from engine.models.latent import read_latent
from engine.models.shared_experts import read_shared, sparse_by_kind

weight_shapes, build = deepseek_v3.weight_shapes, deepseek_v3.build


@dataclass(frozen=True)
class Config(deepseek_v3.Config):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        hf.expect("topk_method", "noaux_tc")
        experts = ("n_routed_experts", "num_local_experts")
        common = read_latent(hf, experts=experts, moe_layers=sparse_by_kind(hf, 1), eps=1e-5)
        return cls(**common, shared=read_shared(hf, common, renormalise=True))
