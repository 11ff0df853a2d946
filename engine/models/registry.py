"""Which architectures there are, without importing one: what is needed to plan a model from its headers alone."""

import re
from dataclasses import dataclass, fields, replace
from functools import cache
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
    whole: ExpertNames | None = None  # a layer's only expert, in releases whose config.json asks for none to choose from
    table: str = ""  # of each token's experts, in layers that choose by the token's number

    @property
    def is_dense(self) -> bool:
        """No router: each layer has one expert, which every token asks for."""
        return isinstance(self.experts, _WholeLayers)

    def load(self) -> ModuleType:
        """The module with `Config`, `weight_shapes` and `build`; imports torch."""
        return import_module(self.module)


@dataclass(frozen=True, slots=True)
class _WholeLayers(ExpertNames):
    """Of a model without experts: a layer's dense part is its expert 0."""

    def find(self, name: str) -> tuple[int, int | None, str, str] | None:
        match = _dense_part(self.prefix, self.separate or self.fused or ()).fullmatch(name)
        return None if match is None else (int(match[1]), 0, match[2], match[3])


@cache
def _dense_part(prefix: str, matrices: tuple[str, ...]) -> re.Pattern[str]:
    before, after = map(re.escape, prefix.split("{layer}"))
    return re.compile(rf"{before}(\d+){after}\.({'|'.join(matrices)})(\.\w+)")


@dataclass(frozen=True, slots=True)
class _OwnExperts(ExpertNames):
    """Those of the model's own layers: a head that guesses several tokens is published as one layer more."""

    num_layers: int = 0

    def find(self, name: str) -> tuple[int, int | None, str, str] | None:
        found = ExpertNames.find(self, name)
        return found if found is None or found[0] < self.num_layers else None


_SWIGLU = ("gate_proj", "up_proj", "down_proj")
_BY_NUMBER = ("w1", "w3", "w2")  # gate, up, down
_FUSED = ("gate_up_proj", "down_proj")
_QWEN = ExpertNames("model.layers.{layer}.mlp.experts", separate=_SWIGLU, fused=_FUSED)
_MIXTRAL = ExpertNames("model.layers.{layer}.block_sparse_moe.experts", separate=_BY_NUMBER)
_LINEAR = ("input_linear", "output_linear")
_GRANITE = ExpertNames("model.layers.{layer}.block_sparse_moe", fused=_LINEAR)
_GRANITE_GATE = "model.layers.{layer}.block_sparse_moe.router.layer"
_DENSE = _WholeLayers("model.layers.{layer}.mlp", separate=_SWIGLU)
_GATE = "model.layers.{layer}.mlp.gate"

_ROWS = (
    Architecture("deepseek_v2", "engine.models.deepseek_v2", _QWEN, _GATE),
    Architecture("deepseek_v3", "engine.models.deepseek_v3", _QWEN, _GATE),
    Architecture("deepseek_v32", "engine.models.deepseek_v32", _QWEN, _GATE),
    Architecture(
        "deepseek_v4",
        "engine.models.deepseek_v4",
        ExpertNames("model.layers.{layer}.ffn.experts", separate=_BY_NUMBER),
        "model.layers.{layer}.ffn.gate",
        norm="model.layers.{layer}.ffn_norm.weight",
        table="model.layers.{layer}.ffn.gate.tid2eid",
    ),
    *(
        Architecture(
            model_type,
            "engine.models.gemma4",
            ExpertNames("model.layers.{layer}.experts", separate=_SWIGLU, fused=_FUSED),
            "model.layers.{layer}.router.proj",
            norm="model.layers.{layer}.pre_feedforward_layernorm_2.weight",
        )
        for model_type in ("gemma4", "gemma4_text")
    ),
    Architecture("glm4_moe", "engine.models.glm4_moe", _QWEN, _GATE),
    Architecture("glm4_moe_lite", "engine.models.glm4_moe_lite", _QWEN, _GATE),
    Architecture("glm_moe_dsa", "engine.models.glm_moe_dsa", _QWEN, _GATE),
    Architecture(
        "gpt_oss",
        "engine.models.gpt_oss",
        ExpertNames("model.layers.{layer}.mlp.experts", fused=_FUSED, is_transposed=True, is_interleaved=True),
        "model.layers.{layer}.mlp.router",
    ),
    *(
        Architecture(model_type, "engine.models.granitemoe", _GRANITE, _GRANITE_GATE)
        for model_type in ("granitemoe", "granitemoeshared")
    ),
    Architecture(
        "granitemoehybrid",
        "engine.models.granitemoehybrid",
        _GRANITE,
        _GRANITE_GATE,
        whole=_WholeLayers("model.layers.{layer}.shared_mlp", fused=_LINEAR),
    ),
    *(Architecture(model_type, "engine.models.deepseek_v3", _QWEN, _GATE) for model_type in ("kimi_k2", "kimi_k25")),
    Architecture(
        "lfm2_moe",
        "engine.models.lfm2_moe",
        ExpertNames("model.layers.{layer}.feed_forward.experts", separate=_BY_NUMBER),
        "model.layers.{layer}.feed_forward.gate",
        norm="model.layers.{layer}.ffn_norm.weight",
    ),
    Architecture("llama", "engine.models.llama", _DENSE, _GATE),
    Architecture("minimax_m2", "engine.models.minimax_m2", _MIXTRAL, "model.layers.{layer}.block_sparse_moe.gate"),
    Architecture("mixtral", "engine.models.mixtral", _MIXTRAL, "model.layers.{layer}.block_sparse_moe.gate"),
    Architecture("olmoe", "engine.models.olmoe", _QWEN, _GATE),
    Architecture("phimoe", "engine.models.phimoe", _MIXTRAL, "model.layers.{layer}.block_sparse_moe.gate"),
    Architecture("qwen2_moe", "engine.models.qwen2_moe", _QWEN, _GATE),
    Architecture("qwen3", "engine.models.qwen3", _DENSE, _GATE),
    Architecture("qwen3_5_moe", "engine.models.qwen3_5_moe", _QWEN, _GATE),
    Architecture("qwen3_5_moe_text", "engine.models.qwen3_5_moe", _QWEN, _GATE),
    Architecture("qwen3_moe", "engine.models.qwen3_moe", _QWEN, _GATE),
    Architecture("qwen3_next", "engine.models.qwen3_next", _QWEN, _GATE),
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
    if row.whole is not None and config.get("num_local_experts") == 0:
        row = replace(row, experts=row.whole)
    num_layers = config.get("num_hidden_layers")
    if type(num_layers) is not int or row.is_dense:
        return row  # what is wrong with it, the architecture's own reader says better
    names = {field.name: getattr(row.experts, field.name) for field in fields(row.experts)}
    return replace(row, experts=_OwnExperts(**names, num_layers=num_layers))
