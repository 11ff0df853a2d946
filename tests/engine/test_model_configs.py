"""What each architecture's reading of config.json refuses: the key and the model are named, before anything is allocated."""

from typing import Any

import pytest

from engine.errors import EngineError
from engine.models.registry import find
from tests.golden.parity import ROWS, tiny_config

pytest.importorskip("transformers", reason="it makes the configurations")
_CASES: list[tuple[str, str, Any, str]] = [
    ("olmoe", "attention_bias", True, "attention_bias is True"),
    ("olmoe", "num_experts_per_tok", 9, "num_experts_per_tok 9"),
    ("phimoe, LongRoPE", "num_experts_per_tok", 3, "num_experts_per_tok is 3"),
    ("phimoe, LongRoPE", "rope_parameters", {"rope_type": "longrope", "original_max_position_embeddings": 9}, "short_factor"),
    ("minimax_m2", "scoring_func", "softmax", "scoring_func is 'softmax'"),
    ("minimax_m2", "rotary_dim", 999, "rotary_dim is 999"),
    ("lfm2_moe", "layer_types", ["conv", "mamba", "conv", "conv", "conv"], "layer_types"),
    ("lfm2_moe", "layer_types", ["conv"], "layer_types"),
    ("granitemoe", "residual_multiplier", 0, "residual_multiplier is 0"),
    ("granitemoeshared", "shared_intermediate_size", -1, "shared_intermediate_size is -1"),
    ("granitemoehybrid", "time_step_limit", [0.001, 0.1], "time_step_limit is [0.001, 0.1]"),
    ("granitemoehybrid", "time_step_limit", [0.0], "time_step_limit is [0.0]"),
    ("granitemoehybrid", "position_embedding_type", "alibi", "position_embedding_type is 'alibi'"),
    ("granitemoehybrid", "layer_types", ["mamba", "conv", "attention", "mamba"], "layer_types"),
    ("granitemoehybrid", "normalization_function", "layernorm", "normalization_function is 'layernorm'"),
    ("granitemoehybrid", "mamba_n_groups", 3, "mamba_n_groups 3"),
    ("granitemoehybrid", "mamba_n_heads", 5, "mamba_n_heads 5"),
    ("granitemoehybrid", "mamba_d_head", 8, "mamba_d_head is 8"),
    ("granitemoehybrid", "mamba_d_conv", 1, "mamba_d_conv is 1"),
    ("granitemoehybrid", "num_experts_per_tok", 9, "num_experts_per_tok 9"),
    ("granitemoehybrid, no experts", "shared_intermediate_size", None, "shared_intermediate_size is missing"),
    ("qwen2_moe", "use_sliding_window", True, "use_sliding_window"),
    ("glm4_moe", "n_group", 3, "n_group 3"),
    ("deepseek_v3, YaRN", "topk_group", 5, "topk_group 5"),
    ("deepseek_v3, YaRN", "topk_method", "greedy", "topk_method is 'greedy'"),
    ("deepseek_v3, YaRN", "kv_lora_rank", None, "kv_lora_rank"),
    ("deepseek_v2, as Lite", "norm_topk_prob", True, "norm_topk_prob"),
    ("deepseek_v32", "index_topk", None, "index_topk is missing"),
    ("deepseek_v32", "index_head_dim", 6, "index_head_dim 6"),
    ("deepseek_v32", "q_lora_rank", None, "q_lora_rank is missing"),
    ("deepseek_v32", "scoring_func", "softmax", "scoring_func is 'softmax'"),
    ("glm_moe_dsa", "indexer_types", ["shared", "full", "full"], "indexer_types begins with a layer"),
    ("glm_moe_dsa", "indexer_types", ["full", "none", "full"], "indexer_types"),
    ("glm_moe_dsa", "mlp_bias", True, "mlp_bias is True"),
    ("glm_moe_dsa", "indexer_rope_interleave", "yes", "indexer_rope_interleave is 'yes'"),
    ("glm4_moe_lite", "mlp_layer_types", ["dense", "odd", "sparse"], "mlp_layer_types"),
    ("qwen3_next", "linear_num_value_heads", 3, "linear_num_value_heads 3"),
    ("gemma4", "num_kv_shared_layers", 2, "num_kv_shared_layers"),
    ("gemma4", "hidden_size_per_layer_input", 16, "hidden_size_per_layer_input"),
    ("gemma4", "enable_moe_block", False, "enable_moe_block"),
    ("deepseek_v4", "scoring_func", "sigmoid", "scoring_func is 'sigmoid'"),
    ("deepseek_v4", "layer_types", ["sliding_attention"] * 5 + ["full_attention"], "layer_types"),
    ("deepseek_v4", "layer_types", None, "layer_types"),
    ("deepseek_v4", "compress_ratios", [0, 0, 4, 128, 4, 16], "compress_ratios has 6 entries of [0, 4, 16, 128]"),
    ("deepseek_v4", "compress_ratios", [0, 4], "compress_ratios has 2 entries of [0, 4]"),
    ("deepseek_v4", "mlp_layer_types", None, "mlp_layer_types"),
    ("deepseek_v4", "compress_rates", [4, 128], "compress_rates is [4, 128]"),
    ("deepseek_v4", "compress_rates", {"compressed_sparse_attention": 0}, "compressed_sparse_attention is 0"),
    ("deepseek_v4", "num_key_value_heads", 2, "num_key_value_heads is 2"),
    ("deepseek_v4", "o_groups", 3, "o_groups 3"),
    ("deepseek_v4", "index_topk", 0, "index_topk is 0"),
    ("deepseek_v4", "index_head_dim", 4, "index_head_dim 4"),
    ("deepseek_v4", "hc_mult", 0, "hc_mult is 0"),
    ("deepseek_v4", "q_lora_rank", None, "q_lora_rank is missing"),
    ("deepseek_v4", "sliding_window", None, "sliding_window is missing"),
    ("deepseek_v4", "qk_rope_head_dim", 7, "qk_rope_head_dim 7"),
    ("deepseek_v4", "rope_parameters", {"compress": {"rope_type": "linear"}}, "rope_type is 'linear'"),
    ("deepseek_v4", "rope_parameters", "none", "rotary embedding"),
]


@pytest.mark.filterwarnings("ignore")
def test_which_layers_share_a_choice_has_three_spellings() -> None:
    config = tiny_config("glm_moe_dsa, shared choices").to_dict()
    wanted = _read(config).has_index
    assert wanted == (True, False, True, False)
    spelled = {key: value for key, value in config.items() if key != "indexer_types"}
    assert _read(spelled | {"index_topk_pattern": "FSFS"}).has_index == wanted
    assert _read(spelled | {"index_topk_freq": 2, "index_skip_topk_offset": 1}).has_index == wanted
    assert _read(spelled).has_index == (True,) * 4
    for key, value in (
        ("index_topk_pattern", "FSXF"),
        ("index_topk_pattern", "FS"),
        ("index_topk_freq", 0),
        ("index_topk_pattern", 3),
    ):
        with pytest.raises(EngineError, match=rf"config\.json of tiny: {key} is "):
            _read(spelled | {key: value})


def _read(config: dict[str, Any]) -> Any:
    return find(config, "tiny").load().Config.read(config, "tiny")


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"])
@pytest.mark.parametrize("value", [None, 0, -3, "many", 1.5, True])
def test_what_every_decoder_needs(name: str, key: str, value: object) -> None:
    config = tiny_config(name).to_dict()
    _read(config)
    with pytest.raises(EngineError, match=rf"config\.json of tiny: {key} is "):
        _read(config | {key: value})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "key", "value", "told"), _CASES)
def test_what_a_model_cannot_do_is_told_by_its_key(name: str, key: str, value: object, told: str) -> None:
    with pytest.raises(EngineError, match=r"config\.json of tiny: ") as caught:
        _read(tiny_config(name).to_dict() | {key: value})
    assert told in caught.value.text
