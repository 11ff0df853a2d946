"""What of a published checkpoint is the text model: its tensors by the names that every text model has, its own configuration.

Models that also see or hear nest the text: tensors under `model.language_model`, the configuration under `text_config`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine.checkpoint.index import Checkpoint
from engine.models.registry import SUPPORTED

_NESTED = ("model.language_model.", "language_model.model.")
_HEAD = "language_model.lm_head."


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """The same where nothing is nested. Towers and what guesses several tokens at once are left out."""
    inner = checkpoint.config.get("text_config")
    if not isinstance(inner, dict) or checkpoint.config.get("model_type") not in SUPPORTED:
        return checkpoint
    tensors = {}
    for name, ref in checkpoint.tensors.items():
        if (own := _own_name(name)) is not None:
            tensors[own] = replace(ref, name=own)
    return Checkpoint(checkpoint.folder, _text_config(checkpoint.config, inner), tensors)


def _own_name(name: str) -> str | None:
    for prefix in _NESTED:
        if name.startswith(prefix):
            return f"model.{name.removeprefix(prefix)}"
    if name.startswith(_HEAD):
        return name.removeprefix("language_model.")
    return name if name.startswith("lm_head.") else None


def _text_config(config: Mapping[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """What the text has of its own goes before; the type is the whole model's."""
    return {**config, **inner, "model_type": config["model_type"]}
