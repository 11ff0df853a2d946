"""GLM-5 and its successors under the same type: DeepSeek-V3.2's layers, some of which see what an earlier layer has chosen.

Source: GLM team 2026, GLM-5, and the published configurations.
"""

from dataclasses import dataclass
from typing import Any

from engine.models import deepseek_v32
from engine.models.hf_config import HfConfig

weight_shapes, build = deepseek_v32.weight_shapes, deepseek_v32.build
_OWN, _EARLIER = "full", "shared"


_LETTERS = {"F": _OWN, "S": _EARLIER}


@dataclass(frozen=True)
class Config(deepseek_v32.Config):
    @classmethod
    def read(cls, values: dict[str, Any], name: str) -> "Config":
        pattern = values.get("index_topk_pattern")
        if isinstance(pattern, str):
            values = values | {"index_topk_pattern": [_LETTERS.get(letter, letter) for letter in pattern]}
        key = "index_topk_pattern" if values.get("indexer_types") is None else "indexer_types"
        hf = HfConfig(values, name)
        return cls(**deepseek_v32.read_layers(hf, interleaved=True, has_index=_has_index(hf, key), eps=1e-5))


def _has_index(hf: HfConfig, key: str) -> list[bool]:
    """By layer: words under that key, or a step after some first layers."""
    count, step = hf.num_layers(), hf.integer("index_topk_freq", 1)
    offset = hf.integer("index_skip_topk_offset", 2, minimum=0)
    default = [_EARLIER if max(layer - offset + 1, 0) % step else _OWN for layer in range(count)]
    kinds = hf.kinds(key, count, (_OWN, _EARLIER), default)
    if kinds[0] != _OWN:
        raise hf.error(f"{key} begins with {kinds[0]}, and no layer before it has chosen")
    return [kind == _OWN for kind in kinds]
