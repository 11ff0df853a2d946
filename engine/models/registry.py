"""Which architectures there are, without importing one: what is needed to plan a model from its headers alone."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from engine.checkpoint.experts import ExpertNames
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row per `model_type` of config.json."""

    model_type: str
    module: str
    experts: ExpertNames
    router: str  # the matrix that chooses them, by its stem
    norm: str = "model.layers.{layer}.post_attention_layernorm.weight"  # of what the router sees

    def load(self) -> ModuleType:
        """The module with `Config`, `weight_shapes` and `build`; imports torch."""
        return import_module(self.module)


_ROWS = (
    Architecture(
        "gpt_oss",
        "engine.models.gpt_oss",
        ExpertNames(
            "model.layers.{layer}.mlp.experts", fused=("gate_up_proj", "down_proj"), is_transposed=True, is_interleaved=True
        ),
        "model.layers.{layer}.mlp.router",
    ),
    Architecture(
        "mixtral",
        "engine.models.mixtral",
        ExpertNames("model.layers.{layer}.block_sparse_moe.experts", separate=("w1", "w3", "w2")),
        "model.layers.{layer}.block_sparse_moe.gate",
    ),
    Architecture(
        "qwen3_moe",
        "engine.models.qwen3_moe",
        ExpertNames(
            "model.layers.{layer}.mlp.experts",
            separate=("gate_proj", "up_proj", "down_proj"),
            fused=("gate_up_proj", "down_proj"),
        ),
        "model.layers.{layer}.mlp.gate",
    ),
)
_BY_TYPE = {row.model_type: row for row in _ROWS}
SUPPORTED = frozenset(_BY_TYPE)


def find(config: dict[str, Any], name: str) -> Architecture:
    """The architecture of a config.json. Raises `EngineError` naming it and those that exist."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise EngineError("model.bad_config", f"config.json of {name} has no model_type.", "Get the file again.")
    row = _BY_TYPE.get(model_type)
    if row is None:
        known = ", ".join(sorted(_BY_TYPE))
        raise EngineError(
            "model.architecture",
            f"{name} is of the architecture {model_type}, which Stoker does not run yet.",
            f"It runs: {known}.",
        )
    return row
