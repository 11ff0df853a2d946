"""Bad checkpoints: each is refused with one sentence that names the file, before anything large, and stays as it was."""

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.experts import ExpertNames, map_experts
from engine.checkpoint.index import open_checkpoint
from engine.checkpoint.safetensors import read_header
from engine.config import Wishes
from engine.engine import Engine
from engine.errors import EngineError
from engine.source import inspect
from tests.helpers.tiny import write_mixtral

WEIGHTS = "model.safetensors"


def _edit_json(file: Path, **changes: object) -> None:
    values = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in (values | changes).items() if value is not None}))


def _edit_header(file: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _shard(folder: Path, with_index: bool) -> None:
    """Split the weights into three numbered files."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"model-{shard + 1:05d}-of-00003.safetensors"
        part = {name: tensors[name] for name in names[shard::3]}
        save_file(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    if with_index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _first_tensor(header: dict[str, dict[str, object]]) -> dict[str, object]:
    return next(entry for name, entry in header.items() if name != "__metadata__")


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda folder: folder.rename(folder.with_name("gone")), "no model folder"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "another folder": (lambda folder: _empty(folder), "no model folder"),
    "config not JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
    "config a list": (lambda folder: (folder / "config.json").write_text("[]"), "config.json"),
    "no model_type": (lambda folder: _edit_json(folder / "config.json", model_type=None), "model_type"),
    "unknown architecture": (lambda folder: _edit_json(folder / "config.json", model_type="gpt2"), "gpt2"),
    "config key missing": (lambda folder: _edit_json(folder / "config.json", hidden_size=None), "hidden_size"),
    "config key a string": (lambda folder: _edit_json(folder / "config.json", hidden_size="big"), "hidden_size"),
    "config of other heads": (lambda folder: _edit_json(folder / "config.json", num_attention_heads=3), "num_attention_heads"),
    "rope not supported": (lambda folder: _edit_json(folder / "config.json", rope_scaling={"type": "longrope"}), "longrope"),
    "layers beyond reason": (lambda folder: _edit_json(folder / "config.json", num_hidden_layers=10**9), "num_hidden_layers"),
    "config nested too deep": (lambda folder: (folder / "config.json").write_text("[" * 100_000), "config.json"),
    "config a pipe": (lambda folder: _replace_with_pipe(folder / "config.json"), "config.json"),
    "context a word": (lambda folder: _edit_json(folder / "config.json", max_position_embeddings="many"), "max_position"),
    "context negative": (lambda folder: _edit_json(folder / "config.json", max_position_embeddings=-5), "max_position"),
    "context beyond a float": (
        lambda folder: _edit_json(folder / "config.json", max_position_embeddings=10**400),
        "max_position",
    ),
    "rope a word": (lambda folder: _edit_json(folder / "config.json", rope_scaling="yarn"), "yarn"),
    "rope without bounds": (lambda folder: _edit_json(folder / "config.json", rope_theta=10**400), "rope_theta"),
    "norm epsilon no number": (lambda folder: _edit_json(folder / "config.json", rms_norm_eps=float("nan")), "rms_norm_eps"),
    "yarn without rotations": (
        lambda folder: _edit_json(
            folder / "config.json", rope_scaling={"type": "yarn", "original_max_position_embeddings": 64, "beta_fast": 0}
        ),
        "beta_fast",
    ),
    "all gates missing": (lambda folder: _drop(folder, lambda name: ".w1." in name), "w1"),
    "first expert's gate missing": (
        lambda folder: _drop(folder, lambda name: "layers.0" in name and "experts.0.w1" in name),
        "Expert 0",
    ),
    "an expert missing": (lambda folder: _drop(folder, lambda name: "layers.0" in name and "experts.7." in name), "layer 0"),
    "header nested too deep": (lambda folder: _write_header(folder / WEIGHTS, b"[" * 100_000), "not JSON"),
    "header naming a tensor twice": (
        lambda folder: _write_header(folder / WEIGHTS, b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}}'),
        "twice",
    ),
    "dtype a list": (lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(dtype=["F32"])), "F32"),
    "shape beyond any number": (
        lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(shape=[10**4000, 10**4000])),
        "impossible",
    ),
    "template a list of words": (
        lambda folder: _edit_json(folder / "tokenizer_config.json", chat_template=["x"]),
        "chat template",
    ),
    "template not UTF-8": (lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe{{"), "chat_template.jinja"),
    "template nested too deep": (
        lambda folder: _edit_json(
            folder / "tokenizer_config.json", chat_template="{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}"
        ),
        "chat template",
    ),
    "config wider than weights": (lambda folder: _edit_json(folder / "config.json", intermediate_size=64), "(48, 32)"),
    "config with more experts": (lambda folder: _edit_json(folder / "config.json", num_local_experts=9), "9"),
    "config with more layers": (lambda folder: _edit_json(folder / "config.json", num_hidden_layers=4), "model.layers.3"),
    "more experts per token than there are": (lambda folder: _edit_json(folder / "config.json", num_experts_per_tok=9), "9"),
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), "no .safetensors"),
    "only GGUF": (lambda folder: (folder / WEIGHTS).rename(folder / "model.gguf"), "model.gguf"),
    "GGUF by another name": (lambda folder: (folder / WEIGHTS).write_bytes(b"GGUF" + b"\3" * 100), "GGUF"),
    "empty file": (lambda folder: (folder / WEIGHTS).write_bytes(b""), "0 bytes"),
    "truncated": (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100]), "ends at"),
    "cut in the header": (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:500]), "header needs"),
    "wrong magic": (lambda folder: (folder / WEIGHTS).write_bytes(b"\xff" * 4096), "no safetensors header"),
    "HTML": (lambda folder: (folder / WEIGHTS).write_bytes(b"<!DOCTYPE html><html></html>"), "no safetensors header"),
    "header not JSON": (lambda folder: (folder / WEIGHTS).write_bytes(struct.pack("<Q", 8) + b"notjson!"), "not JSON"),
    "unknown dtype": (lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(dtype="Q4")), "Q4"),
    "negative offset": (
        lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(data_offsets=[-4, 0])),
        "impossible",
    ),
    "tensor outside the file": (
        lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(data_offsets=[1 << 40, (1 << 40) + 4])),
        "takes 4 bytes",
    ),
    "shape of other size": (
        lambda folder: _edit_header(folder / WEIGHTS, lambda h: _first_tensor(h).update(shape=[7])),
        "takes",
    ),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "broken tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "no template": (lambda folder: _edit_json(folder / "tokenizer_config.json", chat_template=None), "chat template"),
    "broken template": (
        lambda folder: _edit_json(folder / "tokenizer_config.json", chat_template="{% for %}"),
        "chat template",
    ),
    "tokenizer of another model": (lambda folder: _shrink_vocabulary(folder), "rows for 100"),
}


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def _drop(folder: Path, is_dropped: Callable[[str], bool]) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor for name, tensor in tensors.items() if not is_dropped(name)}, folder / WEIGHTS)


def _write_header(file: Path, header: bytes) -> None:
    file.write_bytes(struct.pack("<Q", len(header)) + header)


def _replace_with_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def _shrink_vocabulary(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:100].clone()
    save_file(tensors, folder / WEIGHTS)
    _edit_json(folder / "config.json", vocab_size=100)


def _digest(folder: Path) -> dict[str, str]:
    return (
        {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir() if file.is_file()}
        if folder.is_dir()
        else {}
    )


@pytest.mark.parametrize("name", BAD)
def test_bad_checkpoints_are_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    damage, expected = BAD[name]
    damage(folder)
    before = _digest(folder)
    with pytest.raises(EngineError) as caught:
        Engine(folder, Wishes())
    assert expected in caught.value.text
    assert caught.value.hint, "a person needs a next step"
    assert "\n" not in caught.value.text
    assert _digest(folder) == before


@pytest.mark.parametrize("with_index", [True, False])
def test_shards_read_like_one_file(with_index: bool, tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    whole = open_checkpoint(folder)
    _shard(folder, with_index)
    sharded = open_checkpoint(folder)
    assert {name: (ref.shape, ref.nbytes) for name, ref in sharded.tensors.items()} == {
        name: (ref.shape, ref.nbytes) for name, ref in whole.tensors.items()
    }
    assert inspect(folder).experts.expert_bytes == 3 * 48 * 32 * 4


@pytest.mark.parametrize("with_index", [True, False])
def test_a_missing_shard_is_named_or_counted(with_index: bool, tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    _shard(folder, with_index)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(EngineError, match=r"model-00002-of-00003\.safetensors" if with_index else "2 of 3 weight files"):
        open_checkpoint(folder)


def test_an_index_may_not_point_outside(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    with pytest.raises(EngineError, match="outside the folder"):
        open_checkpoint(folder)


def test_header_agrees_with_the_safetensors_library(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(12, dtype=torch.int16).reshape(3, 4),
        "b": torch.randn(5).to(torch.bfloat16),
        "c": torch.zeros(0),
    }
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    data = (tmp_path / "x.safetensors").read_bytes()
    refs = read_header(tmp_path / "x.safetensors")
    assert set(refs) == set(tensors)
    for name, tensor in tensors.items():
        ref = refs[name]
        assert ref.shape == tuple(tensor.shape)
        assert data[ref.offset : ref.offset + ref.nbytes] == bytes(
            tensor.view(torch.uint8).flatten().tolist() if tensor.numel() else b""
        )


def test_adjacent_parts_become_one_read(tmp_path: Path) -> None:
    """Parts of expert 0 lie side by side, those of expert 1 apart: one run against two, same bytes."""
    names = ExpertNames("m.{layer}", separate=("g", "u", "d"))
    order = [
        f"m.0.{part}" for part in ("0.g.weight", "0.u.weight", "0.d.weight", "1.u.weight", "filler", "1.g.weight", "1.d.weight")
    ]
    sizes = dict.fromkeys(order, 8)
    header: dict[str, object] = {}
    for position, name in enumerate(order):
        header[name] = {"dtype": "U8", "shape": [sizes[name]], "data_offsets": [position * 8, position * 8 + 8]}
    text = json.dumps(header).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(56)))
    (tmp_path / "config.json").write_text("{}")
    experts = map_experts(open_checkpoint(tmp_path), names)
    data = (tmp_path / "w.safetensors").read_bytes()
    base = 8 + len(text)
    first, second = experts.ranges[0]
    assert [len(first.runs), len(second.runs)] == [1, 2]
    for expert, positions in ((first, (0, 1, 2)), (second, (5, 3, 6))):
        by_matrix = {part.matrix: part for part in expert.parts}
        for matrix, position in zip("gud", positions, strict=True):
            part = by_matrix[matrix]
            run = expert.runs[part.run]
            start = run.offset + part.start
            assert data[start : start + part.ref.nbytes] == data[base + 8 * position : base + 8 * position + 8]
