"""Headers of whole published models without a weight: by transformers' own classes, on no device, by the names that it saves."""

from typing import Any, cast

import pytest
import torch

from engine.checkpoint.write import TensorSpec


def published_tensors(model_type: str, changes: dict[str, Any]) -> tuple[list[TensorSpec], dict[str, Any]]:
    """Every tensor in BF16 with the configuration: transformers' defaults but for `changes`."""
    transformers = pytest.importorskip("transformers")
    from transformers.core_model_loading import revert_weight_conversion

    config = transformers.CONFIG_MAPPING[model_type](**changes)
    with torch.device("meta"):
        model = cast(Any, transformers.AutoModelForCausalLM).from_config(config)
    tensors = revert_weight_conversion(model, model.state_dict())
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    specs = [TensorSpec(name, "BF16", tuple(tensor.shape)) for name, tensor in tensors.items()]
    return sorted(specs, key=lambda spec: _place(spec.name)), config.to_dict()


def _place(name: str) -> tuple[int, int]:
    """As makers write files: the embedding, the layers in order, the rest."""
    parts = name.split(".")
    if "layers" in parts:
        return 1, int(parts[parts.index("layers") + 1])
    return (0, 0) if "embed_tokens" in name else (2, 0)


def in_fp8_blocks(tensors: list[TensorSpec]) -> list[TensorSpec]:
    """Matrices as DeepSeek publishes them, with a scale for each block of 128 x 128; the rest stays."""
    found = []
    for spec in tensors:
        if spec.name.endswith("_proj.weight") or spec.name.endswith("kv_a_proj_with_mqa.weight"):
            rows, cols = spec.shape
            scales = (-(-rows // 128), -(-cols // 128))
            found.append(TensorSpec(spec.name, "F8_E4M3", spec.shape))
            found.append(TensorSpec(f"{spec.name}_scale_inv", "F32", scales))
        else:
            found.append(spec)
    return found
