"""The plan of a checkpoint whose headers alone are megabytes: few of them are read, and the sum must be that of all."""

import json
import os
import re
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.index import open_checkpoint
from engine.checkpoint.write import TensorSpec
from engine.config import Wishes
from engine.hardware.machine import Machine
from engine.judge import Ground, footprint_of, plan_facts, read_named
from engine.plan.footprint import Footprint
from engine.protocol import Fit
from engine.store.web import Line
from engine.units import GB
from tests.helpers.full_size import in_fp8_blocks, published_tensors
from tests.helpers.rates import notebook
from tests.hub.server import FakeHub

_SHARD_BYTES = 4.3e9


def _deepseek(layers: int = 61) -> tuple[list[TensorSpec], dict[str, Any]]:
    """DeepSeek-V3 as published: FP8 in blocks, and a layer more, with a matrix, embedding and head of its own."""
    specs, config = published_tensors("deepseek_v3", {"num_hidden_layers": layers})
    last = [spec for spec in specs if f".layers.{layers - 1}." in spec.name]
    frame = (f"model.layers.{layers}.embed_tokens.weight", f"model.layers.{layers}.shared_head.head.weight")
    further = [replace(spec, name=spec.name.replace(f".{layers - 1}.", f".{layers}.", 1)) for spec in last]
    further += [TensorSpec(name, "BF16", (129280, 7168)) for name in frame]
    further.append(TensorSpec(f"model.layers.{layers}.eh_proj.weight", "BF16", (7168, 14336)))
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    return in_fp8_blocks(specs + further), config | {"quantization_config": quantised, "num_nextn_predict_layers": 1}


def _write(folder: Path, specs: list[TensorSpec], config: dict[str, Any]) -> dict[str, bytes | Path]:
    """Shards in order with holes behind their headers, and the index that belongs to them."""
    shards: list[dict[str, Any]] = [{}]
    size = 0
    for spec in specs:
        if size + spec.num_bytes > _SHARD_BYTES:
            shards.append({})
            size = 0
        offsets = [size, size + spec.num_bytes]
        shards[-1][spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": offsets}
        size += spec.num_bytes
    names = [f"model-{number:05d}-of-{len(shards):06d}.safetensors" for number in range(1, len(shards) + 1)]
    index = {"weight_map": {tensor: name for name, header in zip(names, shards, strict=True) for tensor in header}}
    files: dict[str, bytes | Path] = {"config.json": json.dumps(config).encode()}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    for name, content in files.items():
        assert isinstance(content, bytes)
        (folder / name).write_bytes(content)
    for name, header in zip(names, shards, strict=True):
        text = json.dumps(header).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(folder / name, 8 + len(text) + max(item["data_offsets"][1] for item in header.values()))
        files[name] = folder / name
    return files


def _remote(line: Line, name: str) -> Footprint:
    footprint = read_named(line, name, lambda: False).footprint
    assert footprint is not None
    return footprint


def test_ninety_thousand_tensors_are_planned_from_few_headers(hub: FakeHub, line: Line, tmp_path: Path) -> None:
    specs, config = _deepseek()
    files = _write(tmp_path, specs, config)
    assert len(specs) > 90_000
    assert sum(spec.num_bytes for spec in specs) > 680e9
    assert sum(len(spec.name) + 60 for spec in specs) > 8e6, "so much are all headers"
    hub.add("maker/Huge", files, sha256=dict.fromkeys(files, "0" * 64))
    machine = Machine(64 * GB, 60 * GB, False)
    ground = Ground(machine, notebook(tmp_path / "data", machine, tmp_path), 10**13, tmp_path)
    begun = time.perf_counter()
    facts = read_named(line, "maker/Huge", lambda: False)
    model, _ = plan_facts(facts, ground, Wishes(context=4096))
    print(f"planned in {time.perf_counter() - begun:.2f} s with {hub.sent_bytes / 1e6:.2f} MB")
    assert hub.sent_bytes < 5_000_000
    verdict = model.releases[0].verdict
    assert verdict is not None
    assert verdict.fit is Fit.DISK
    assert model.releases[0].bytes == sum(
        content.stat().st_size for content in files.values() if isinstance(content, Path)
    ) + sum(len(content) for content in files.values() if isinstance(content, bytes))
    ours, exact = facts.footprint, footprint_of(open_checkpoint(tmp_path))
    assert ours is not None
    for name in ("model_bytes", "dense_bytes", "dense_read_bytes", "expert_bytes", "head_bytes", "looked_up_bytes"):
        assert getattr(ours, name) == pytest.approx(getattr(exact, name), rel=0.01), name
    rest = [field for field in Footprint.__dataclass_fields__ if not field.endswith("bytes") and field != "name"]
    assert {name: getattr(ours, name) for name in rest} == {name: getattr(exact, name) for name in rest}


def test_layers_that_are_not_alike_are_all_read(
    hub: FakeHub, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is wider than the last one: no layer stands for another, and the sizes of the files tell."""
    monkeypatch.setattr("engine.store.headers._ALL_BYTES", 1)
    monkeypatch.setattr("tests.store.test_sampled_headers._SHARD_BYTES", 4e6)
    specs, config = published_tensors("mixtral", {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 1024,
    })  # fmt: skip
    wider = []
    for spec in specs:
        layer = re.search(r"layers\.(\d+)\.input_layernorm", spec.name)
        wider.append(spec if layer is None else replace(spec, shape=(256 + 40_000 * int(layer[1]),)))
    files = _write(tmp_path, wider, config)
    hub.add("maker/Odd", files)
    assert len(files) > 24
    assert _remote(line, "maker/Odd").model_bytes == sum(spec.num_bytes for spec in wider)


def test_layers_that_are_alike_are_filled_in(hub: FakeHub, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.store.headers._ALL_BYTES", 1)
    monkeypatch.setattr("tests.store.test_sampled_headers._SHARD_BYTES", 4e6)
    specs, config = published_tensors("mixtral", {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 1024,
    })  # fmt: skip
    files = _write(tmp_path, specs, config)
    hub.add("maker/Even", files)
    exact = footprint_of(open_checkpoint(tmp_path))
    assert replace(_remote(line, "maker/Even"), name=exact.name) == exact
    asked = {seen.path.rpartition("/")[2] for seen in hub.seen if "safetensors" in seen.path and "index" not in seen.path}
    assert len(asked) < len(files) // 2
