"""Configurations and tensor names that nobody publishes: loader and verdict answer with one sentence, at once and in little memory."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.index import open_checkpoint
from engine.errors import EngineError
from engine.hardware.machine import Machine
from engine.judge import Ground, footprint_of, plan_facts, read_named
from engine.source import inspect
from engine.store.patience import Patience, Throttle
from engine.store.web import Line
from engine.units import GB
from tests.golden.parity import make_golden
from tests.helpers.tiny import session_on, write_mixtral

pytest.importorskip("transformers", reason="it makes the checkpoints")
_DIGITS = 10**400  # JSON has it, and no float does


def _judged(folder: Path) -> None:
    """As `stoker plan` and the library ask of a folder."""
    line = Line(None, None, Patience(), Throttle())  # type: ignore[arg-type]  # a whole path asks no hub
    ground = Ground(Machine(16 * GB, 12 * GB, False), None, 100 * GB, folder)
    plan_facts(read_named(line, str(folder), lambda: False), ground)


def _changed(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    config.get("text_config", config).update(values)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "row", ["granitemoeshared", "granitemoehybrid", "glm_moe_dsa", "kimi_k25, as published", "deepseek_v4"]
)
@pytest.mark.parametrize("count", [1001, 2**63, _DIGITS], ids=("just", "many", "digits"))
def test_more_layers_than_any_model_has_are_named_at_once(row: str, count: int, tmp_path: Path) -> None:
    folder = _changed(make_golden(row, tmp_path / "tiny").folder, num_hidden_layers=count)
    for read in (lambda: inspect(folder), lambda: footprint_of(open_checkpoint(folder)), lambda: _judged(folder)):
        with pytest.raises(EngineError, match="num_hidden_layers") as caught:
            read()
        assert caught.value.code == "model.bad_config"


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ("granitemoehybrid", "mamba_d_state"),
        ("granitemoehybrid", "mamba_expand"),
        ("glm_moe_dsa", "kv_lora_rank"),
        ("deepseek_v32", "index_head_dim"),
        ("deepseek_v4", "head_dim"),
        ("deepseek_v4", "sliding_window"),
        ("kimi_k2", "vocab_size"),
        ("granitemoeshared", "max_position_embeddings"),
        ("granitemoeshared", "num_key_value_heads"),
    ],
)
@pytest.mark.parametrize("value", [2**31, 2**63, _DIGITS], ids=("many", "more", "digits"))
def test_a_verdict_over_numbers_of_any_size_ends_in_a_sentence(row: str, key: str, value: int, tmp_path: Path) -> None:
    """A count that cannot be is refused, or counts as absent; either way nothing overflows."""
    folder = _changed(make_golden(row, tmp_path / "tiny").folder, **{key: value})
    with suppress(EngineError):
        _judged(folder)
    if value > 2**31:
        with pytest.raises(EngineError):
            inspect(folder)


@pytest.mark.parametrize("key", ["residual_multiplier", "logits_scaling", "embedding_multiplier"])
@pytest.mark.parametrize("value", [1e-300, 1e-31, 1e31, float("inf"), float("nan")])
def test_a_factor_that_no_32_bits_hold_is_named(key: str, value: float, tmp_path: Path) -> None:
    folder = _changed(make_golden("granitemoeshared", tmp_path / "tiny").folder, **{key: value})
    with pytest.raises(EngineError, match=f"{key} is .*, not a positive number"):
        inspect(folder)


def test_a_key_that_is_null_counts_as_absent_for_the_verdict_too(tmp_path: Path) -> None:
    folder = _changed(make_golden("granitemoeshared", tmp_path / "tiny").folder, moe_intermediate_size=None)
    assert footprint_of(open_checkpoint(folder)).expert_size == inspect(folder).footprint.expert_size == 24


@pytest.mark.parametrize("name", ["model.layers.{}.mlp.bias", "model.layers.0.block_sparse_moe.experts.{}.w1.weight"])
def test_a_tensor_whose_number_has_thousands_of_digits_is_refused(name: str, tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name.format("9" * 5000): torch.ones(2, 2)}, file)
    for read in (lambda: inspect(folder), lambda: _judged(folder)):
        with pytest.raises(EngineError, match=r"model.safetensors is damaged.*name has 50\d\d characters"):
            read()


def test_experts_without_bytes_are_named(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    file = folder / "model.safetensors"
    save_file({name: tensor[:0] if ".experts." in name else tensor for name, tensor in load_file(file).items()}, file)
    for read in (lambda: inspect(folder), lambda: _judged(folder)):
        with pytest.raises(EngineError, match="xpert"):
            read()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("count", [0, 2**40], ids=("none", "any number"))
def test_a_fused_tensor_without_bytes_is_not_taken_apart(count: int, tmp_path: Path) -> None:
    """A shape with a 0 in it may claim any number of experts and still fit a file of no size."""
    folder = make_golden("granitemoeshared", tmp_path / "tiny").folder
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    name = "model.layers.0.block_sparse_moe.input_linear.weight"
    assert name in header
    header[name] |= {"shape": [count, 0, 32], "data_offsets": [0, 0]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    for read in (lambda: inspect(folder), lambda: _judged(folder)):
        with pytest.raises(EngineError, match=f"{name} in model.safetensors is .*, which are no experts"):
            read()


@pytest.mark.parametrize("value", [[], {}, ["kimi_k25"], None, 5])
def test_a_type_that_is_no_word_is_named_beside_a_nested_configuration(value: object, tmp_path: Path) -> None:
    folder = make_golden("kimi_k25, as published", tmp_path / "tiny").folder
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": value}))
    for read in (lambda: inspect(folder), lambda: _judged(folder)):
        with pytest.raises(EngineError, match="has no model_type"):
            read()


def test_more_dense_layers_than_any_model_has_are_named(tmp_path: Path) -> None:
    folder = _changed(make_golden("deepseek_v32", tmp_path / "tiny").folder, first_k_dense_replace=2**31)
    with pytest.raises(EngineError, match="first_k_dense_replace is 2147483648"):
        inspect(folder)


def test_a_key_that_can_only_be_one_may_be_absent(tmp_path: Path) -> None:
    """DeepSeek-V4 has one head of keys whether its file says so or not."""
    folder = make_golden("deepseek_v4", tmp_path / "tiny").folder
    config = json.loads((folder / "config.json").read_text())
    with session_on(folder) as (session, _):
        told, _ = session.sync([1, 2, 3])
    del config["num_key_value_heads"]
    (folder / "config.json").write_text(json.dumps(config))
    assert footprint_of(open_checkpoint(folder)).num_kv_heads == inspect(folder).footprint.num_kv_heads == 1
    with session_on(folder) as (session, _):
        assert torch.equal(session.sync([1, 2, 3])[0], told)


def test_a_single_number_is_no_fused_tensor(tmp_path: Path) -> None:
    folder = make_golden("granitemoeshared", tmp_path / "tiny").folder
    file, name = folder / "model.safetensors", "model.layers.0.block_sparse_moe.input_linear.weight"
    save_file(load_file(file) | {name: torch.tensor(1.0)}, file)
    for read in (lambda: inspect(folder), lambda: _judged(folder)):
        with pytest.raises(EngineError, match="which are no experts"):
            read()


def test_a_stretch_whose_bands_meet_is_named(tmp_path: Path) -> None:
    bands = {
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
    }  # fmt: skip
    folder = _changed(make_golden("llama, stretched", tmp_path / "tiny").folder, rope_scaling=bands, rope_parameters=None)
    with pytest.raises(EngineError, match="low_freq_factor 4 is not below high_freq_factor 4"):
        inspect(folder)
