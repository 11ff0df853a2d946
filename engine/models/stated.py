"""What config.json states against what the weights hold, and in which shape: a wrong value is named, never passed over."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from engine.checkpoint.index import Checkpoint
from engine.errors import EngineError
from engine.models.geometry import MOST_LAYERS

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_FURTHER = "eh_proj."  # joins two streams in a head that guesses several tokens: one layer more (DeepSeek, GLM)


def check_stated(checkpoint: Checkpoint) -> None:
    """Raises `EngineError` naming file and key, where config.json asks for fewer layers than there are, for more than
    any model has, or says of the quantisation what it cannot be."""
    _check_depth(checkpoint)
    _check_quantization(checkpoint.config, checkpoint.name)


def _check_depth(checkpoint: Checkpoint) -> None:
    count = checkpoint.config.get("num_hidden_layers")
    if type(count) is not int:
        return  # whoever needs the number names it
    if count > MOST_LAYERS:
        raise _bad(checkpoint.name, "num_hidden_layers", count, f"not a whole number from 1 to {MOST_LAYERS}")
    beyond: dict[int, str] = {}
    further = set()
    for name in checkpoint.tensors:
        match = _LAYER.fullmatch(name)
        if match is not None and int(match[1]) >= count:
            beyond[int(match[1])] = name
            if match[2].startswith(_FURTHER):
                further.add(int(match[1]))
    if odd := sorted(beyond.keys() - further):
        tensor = beyond[odd[0]]
        raise EngineError(
            "model.bad_config",
            f"config.json of {checkpoint.name} has num_hidden_layers {count}, and {checkpoint.tensors[tensor].file.name} holds "
            f"layer {odd[-1]} too ({tensor}).",
            "config.json and weights are of different models, or it was edited: get both again.",
        )


def _check_quantization(config: Mapping[str, Any], name: str) -> None:
    found = config.get("quantization_config")
    if found is None:
        return
    if not isinstance(found, dict):
        raise _bad(name, "quantization_config", found, "not an object")
    for key, is_right, wanted in _QUANTIZATION:
        if found.get(key) is not None and not is_right(found[key]):
            raise _bad(name, f"quantization_config.{key}", found[key], f"not {wanted}")


def _is_count(value: object) -> bool:
    return type(value) is int and (value == -1 or 1 <= value <= 2**20)


_QUANTIZATION: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("quant_method", lambda value: isinstance(value, str), "the name of a method"),
    ("checkpoint_format", lambda value: isinstance(value, str), "the name of a format"),
    ("bits", lambda value: type(value) is int and 1 <= value <= 32, "a number of bits"),
    ("group_size", _is_count, "a number of weights"),
    (
        "weight_block_size",
        lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
        "two numbers of weights",
    ),
)


def end_ids(values: Mapping[str, Any], file: str, name: str) -> frozenset[int]:
    """`eos_token_id` of a configuration file: a token, several, or none. Raises `EngineError` for anything else."""
    found = values.get("eos_token_id")
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(item) is int and item >= 0 for item in ids):
        raise _bad(name, "eos_token_id", found, "neither a token's number nor a list of them", file)
    return frozenset(ids)


def _bad(name: str, key: str, value: object, what: str, file: str = "config.json") -> EngineError:
    return EngineError("model.bad_config", f"{file} of {name} has {key} {str(value)[:60]!r}, {what}.", "Get the file again.")
