"""A checkpoint with its experts in another format: the same names, files and other weights. Knows no format itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from engine.models.registry import find
from tests.perf.quantise import Tensors


def reencode(source: Path, target: Path, quantise: Callable[[torch.Tensor], Tensors]) -> Path:
    """Write the plain checkpoint in `source` into `target`, which may not exist, one file at a time; returns `target`.

    Equal experts, of which the demo model has many, are quantised once.
    """
    target.mkdir(parents=True)
    names = find(json.loads((source / "config.json").read_text()), source.name).experts
    for file in source.iterdir():
        if file.is_file() and ".safetensors" not in file.name:
            shutil.copyfile(file, target / file.name)
    done: dict[bytes, Tensors] = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors: Tensors = {}
        for name, tensor in load_file(file).items():
            if names.find(name) is None:
                tensors[name] = tensor
                continue
            content = tensor.view(torch.uint8).numpy().tobytes()
            if content not in done:
                done[content] = quantise(tensor.float())
            # copies, since the file's writer refuses tensors that share memory
            tensors |= {name.removesuffix(".weight") + suffix: part.clone() for suffix, part in done[content].items()}
        save_file(tensors, target / file.name)
    return target
