"""What of a published checkpoint is the text model: its tensors by the names that every text model has, its own configuration.

Models that also see or hear nest the text: tensors under `model.language_model`, the configuration under `text_config`.
DeepSeek-V4 is published under names of its own, and by transformers under a mixture of these and its own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from engine.checkpoint.index import Checkpoint
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.models.registry import SUPPORTED

_NESTED = ("model.language_model.", "language_model.model.")
_HEAD = "language_model.lm_head."
_DEEPSEEK_V4 = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"^embed\.", "model.embed_tokens."),
        (r"^head\.", "lm_head."),
        (r"^(layers\.|norm\.|hc_head_)", r"model.\1"),
        (r"^model\.hc_head\.hc_", "model.hc_head_"),  # transformers
        (r"\.attn\.norm\.", ".attn.kv_norm."),  # transformers
        (r"\.ffn\.gate\.bias$", ".ffn.gate.e_score_correction_bias"),  # it is none of the matrix beside it
    )
)


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """The same where all has its usual name. Towers and what guesses several tokens at once are left out where they are nested
    beside the text. Raises `EngineError` where two tensors are one."""
    inner, kind = checkpoint.config.get("text_config"), checkpoint.config.get("model_type")
    if kind == "deepseek_v4":
        return replace(checkpoint, tensors=_renamed(checkpoint, _name_in_deepseek_v4))
    if not isinstance(inner, dict) or not isinstance(kind, str) or kind not in SUPPORTED:
        return checkpoint
    return Checkpoint(checkpoint.folder, _text_config(checkpoint.config, inner), _renamed(checkpoint, _name_in_nested))


def _renamed(checkpoint: Checkpoint, own_name: Callable[[str], str | None]) -> dict[str, TensorRef]:
    tensors: dict[str, TensorRef] = {}
    for name, ref in checkpoint.tensors.items():
        if (own := own_name(name)) is None:
            continue
        if own in tensors:
            raise EngineError(
                "checkpoint.duplicate_tensor",
                f"Tensor {own} is in {ref.file.name} of {checkpoint.name} under two names, one of them {name}.",
                "Get another release of this model.",
            )
        tensors[own] = replace(ref, name=own)
    return tensors


def _name_in_nested(name: str) -> str | None:
    for prefix in _NESTED:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    if name.startswith(_HEAD):
        return name.removeprefix("language_model.")
    return name if name.startswith("lm_head.") else None


def _name_in_deepseek_v4(name: str) -> str:
    for pattern, ours in _DEEPSEEK_V4:
        name = pattern.sub(ours, name)
    return name


def _text_config(config: Mapping[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """What the text has of its own goes before; the type is the whole model's."""
    return {**config, **inner, "model_type": config["model_type"]}
