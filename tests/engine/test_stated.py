"""What config.json states and the weights contradict, or what no configuration can mean, is named with its file and key."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint.index import open_checkpoint
from engine.errors import EngineError
from engine.judge import footprint_of
from engine.models.stated import end_ids
from engine.source import inspect
from tests.golden.parity import make_golden
from tests.helpers.tiny import write_mixtral


def _changed(folder: Path, **values: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    return folder


def _both_refuse(folder: Path) -> list[EngineError]:
    """The loader, and whoever plans from headers alone."""
    found = []
    for read in (lambda: inspect(folder), lambda: footprint_of(open_checkpoint(folder))):
        with pytest.raises(EngineError) as caught:
            read()
        found.append(caught.value)
    return found


def test_layers_are_never_left_out_in_silence(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    for error in _both_refuse(_changed(folder, num_hidden_layers=layers - 1)):
        assert error.code == "model.bad_config"
        assert "config.json" in error.text
        assert f"num_hidden_layers {layers - 1}" in error.text
        assert "model.safetensors" in error.text
        assert error.hint


def test_a_head_that_guesses_further_tokens_is_no_contradiction(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = make_golden("glm4_moe, groups", tmp_path / "glm").folder
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    assert any(f"layers.{layers}." in name for name in open_checkpoint(folder).tensors)
    assert footprint_of(open_checkpoint(folder)).num_layers == inspect(folder).footprint.num_layers == layers
    fewer = shutil.copytree(folder, tmp_path / "fewer")
    for error in _both_refuse(_changed(fewer, num_hidden_layers=layers - 1)):
        assert "num_hidden_layers" in error.text, "the last layer of the model itself guesses nothing"


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
@pytest.mark.parametrize(
    ("row", "changes", "named"),
    [
        ("granitemoeshared", {"shared_intermediate_size": 0}, "model.layers.0.shared_mlp.input_linear.weight"),
        ("granitemoehybrid", {"mamba_conv_bias": False}, "model.layers.0.mamba.conv1d.bias"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 4}, "model.layers.2.mamba.in_proj.weight"),
        ("granitemoehybrid", {"mamba_d_state": 20}, "model.layers.0.mamba.in_proj"),
        ("glm_moe_dsa", {"indexer_types": ["full", "shared", "full"]}, "model.layers.1.self_attn.indexer.k_norm.bias"),
        ("glm_moe_dsa, shared choices", {"indexer_types": ["full"] * 4}, "model.layers.1.self_attn.indexer.wq_b.weight"),
        ("deepseek_v32", {"index_n_heads": 4}, "model.layers.0.self_attn.indexer.wq_b"),
        ("deepseek_v32", {"model_type": "deepseek_v3"}, "model.layers.0.self_attn.indexer.k_norm.bias"),
        ("kimi_k2", {"first_k_dense_replace": 2}, "model.layers.1.mlp.gate_proj.weight"),
    ],
)
def test_a_tensor_absent_surplus_or_of_another_shape_is_named(
    row: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    folder = make_golden(row, tmp_path / "tiny").folder
    inspect(folder)
    with pytest.raises(EngineError) as caught:
        inspect(_changed(folder, **changes))
    assert caught.value.code in ("checkpoint.missing_tensor", "checkpoint.surplus_tensor", "checkpoint.shape")
    assert named in caught.value.text
    assert caught.value.hint


def test_what_follows_from_the_configuration_may_lie_beside_the_weights(tmp_path: Path) -> None:
    """Rotary frequencies in older releases, scales of an 8-bit cache in quantised ones."""
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    tensors = load_file(folder / "model.safetensors")
    own = "model.layers.0.self_attn"
    extra = {
        f"{own}.rotary_emb.inv_freq": torch.ones(4),
        f"{own}.k_scale": torch.ones(1),
        f"{own}.v_proj.output_scale": torch.ones(1),
    }
    save_file(tensors | extra, folder / "model.safetensors")
    inspect(folder)
    save_file(tensors | {f"{own}.sinks": torch.ones(4)}, folder / "model.safetensors")
    with pytest.raises(EngineError, match=r"model.safetensors of tiny holds model.layers.0.self_attn.sinks"):
        inspect(folder)


@pytest.mark.parametrize(
    "value", ["fp8", [], 5, {"quant_method": 4}, {"quant_method": "gptq", "bits": "four"}, {"quant_method": "awq", "group_size": 0},
              {"quant_method": "fp8", "weight_block_size": [128]}, {"quant_method": "fp8", "weight_block_size": "128"}],
)  # fmt: skip
def test_an_odd_quantisation_is_named(tmp_path: Path, value: object) -> None:
    folder = _changed(write_mixtral(tmp_path / "tiny", torch.bfloat16), quantization_config=value)
    for error in _both_refuse(folder):
        assert error.code == "model.bad_config"
        assert "quantization_config" in error.text


@pytest.mark.parametrize("value", ["2", [2, "3"], {"id": 2}, True, -1, 2.0, [None]])
def test_an_end_token_of_a_wrong_type_is_named(value: object) -> None:
    with pytest.raises(EngineError, match=r"generation_config.json of Tiny has eos_token_id"):
        end_ids({"eos_token_id": value}, "generation_config.json", "Tiny")


def test_end_tokens() -> None:
    assert end_ids({"eos_token_id": [2, 5]}, "config.json", "Tiny") == {2, 5}
    assert end_ids({"eos_token_id": 2}, "config.json", "Tiny") == {2}
    assert end_ids({"eos_token_id": None}, "config.json", "Tiny") == end_ids({}, "config.json", "Tiny") == frozenset()
