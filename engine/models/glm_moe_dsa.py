"""GLM-5 and its successors under the same type: DeepSeek-V3.2's layers, some of which see what an earlier layer has chosen.

Source: GLM team 2026, GLM-5, and the published configurations.
"""

from dataclasses import dataclass
from typing import Any

from engine.models import deepseek_v32
from engine.models.geometry import indexed_layers
from engine.models.hf_config import HfConfig

weight_shapes, build = deepseek_v32.weight_shapes, deepseek_v32.build
_OWN, _EARLIER = "full", "shared"
_LETTERS = {"F": _OWN, "S": _EARLIER}


@dataclass(frozen=True)
class Config(deepseek_v32.Config):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        hf = HfConfig(values, name)
        return cls(**deepseek_v32.read_layers(hf, interleaved=True, has_index=_has_index(values, hf, name), eps=1e-5))


def _has_index(values: dict[str, Any], hf: HfConfig, name: str) -> list[bool]:
    """By layer; what `indexed_layers` reads of it is checked here."""
    count, key = hf.num_layers(), "indexer_types" if values.get("indexer_types") is not None else "index_topk_pattern"
    hf.integer("index_topk_freq", 1)
    hf.integer("index_skip_topk_offset", 2, minimum=0)
    words = values.get(key)
    if isinstance(words, str):
        words = [_LETTERS.get(letter, letter) for letter in words]
    HfConfig({key: words}, name).kinds(key, count, (_OWN, _EARLIER), [_OWN] * count)
    found = indexed_layers(values, count)
    if not found[0]:
        raise hf.error(f"{key} begins with a layer that sees what an earlier one has chosen")
    return found
