"""The rest of a checkpoint from some of its headers: layers repeat, and the sizes of the files tell whether that was right.

Knows no network. Sources of names: the makers' releases, whose layers are `….layers.7.…` and lie in a row in numbered files.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from engine.checkpoint.safetensors import TensorRef

Headers = Mapping[int, Mapping[str, TensorRef]]  # by the number of the file
_LAYER = re.compile(r"(.*\blayers\.)(\d+)(\..*)")
_TOLERANCE = 0.005  # of all bytes: less than one layer of any model that is large enough for this


def filled(headers: Headers, num_files: int, config: Mapping[str, Any], data_bytes: int) -> dict[str, TensorRef] | None:
    """All tensors, where those of a layer that was not read as a whole lie where those of a layer like it do.

    `data_bytes` are those of all files without their headers. None where the tensors do not add up to them.
    """
    text = config.get("text_config")
    text = text if isinstance(text, dict) else config
    count = text.get("num_hidden_layers")
    if type(count) is not int:
        return None
    others, layers, open_layers = _sorted(headers, num_files)
    if any(number >= count for number in open_layers):
        return None  # of its kind there is no other
    whole = {number: found for number, found in layers.items() if number not in open_layers}
    own = [number for number in whole if number < count]
    likes = {number: _like(number, own, text.get("layer_types")) for number in range(count) if number not in whole}
    like = {number: other for number, other in likes.items() if other is not None}
    if len(like) < len(likes):
        return None
    nbytes = {number: sum(ref.nbytes for ref in found.values()) for number, found in whole.items()}
    total = sum(ref.nbytes for ref in others.values()) + sum(nbytes.values())
    total += sum(nbytes[other] for other in like.values())
    if abs(total - data_bytes) > _TOLERANCE * data_bytes:
        return None
    tensors = others | {name: ref for found in whole.values() for name, ref in found.items()}
    for number, other in like.items():
        tensors |= _renumbered(whole[other], other, number)
    return tensors


def _sorted(headers: Headers, num_files: int) -> tuple[dict[str, TensorRef], dict[int, dict[str, TensorRef]], set[int]]:
    """Tensors of no layer, those of each, and the layers that may go on in a file beside those that were read."""
    others: dict[str, TensorRef] = {}
    layers: dict[int, dict[str, TensorRef]] = defaultdict(dict)
    open_layers = set()
    for file, tensors in headers.items():
        is_open = any(0 <= beside < num_files and beside not in headers for beside in (file - 1, file + 1))
        for name, ref in tensors.items():
            match = _LAYER.fullmatch(name)
            if match is None or match[1].startswith("mtp."):
                others[name] = ref
                continue
            number = int(match[2])
            layers[number][name] = ref
            if is_open:
                open_layers.add(number)
    return others, layers, open_layers


def _like(number: int, whole: Sequence[int], kinds: Any) -> int | None:
    """The last layer that is there as a whole, of the same kind where the configuration names kinds."""
    if isinstance(kinds, list) and number < len(kinds):
        whole = [other for other in whole if other < len(kinds) and kinds[other] == kinds[number]]
    return max(whole, default=None)


def _renumbered(tensors: Mapping[str, TensorRef], other: int, number: int) -> dict[str, TensorRef]:
    old, new = f"layers.{other}.", f"layers.{number}."
    names = {name.replace(old, new, 1): ref for name, ref in tensors.items()}
    return {name: TensorRef(name, ref.file, ref.offset, ref.nbytes, ref.dtype, ref.shape) for name, ref in names.items()}
