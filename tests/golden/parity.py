"""One architecture held against transformers: a tiny random checkpoint as the Hub would have it, and how far our passes differ.

The rows below are all that a new architecture adds here.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file

from engine.config import KvType
from engine.kernels.kernels import Kernels
from engine.session import Session
from tests.golden.encoded import PUBLISHED, encode, encode_blocks
from tests.helpers.encodings import ENCODINGS, Tensors
from tests.helpers.tiny import session_on

_TOKENS, _PROMPT, _BACK = 40, 24, 10  # of the timeline, of its prompt, and where a rewind goes to
_COMMON: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128}
_LATENT = {
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "moe_intermediate_size": 24, "intermediate_size": 64, "num_experts_per_tok": 2, "num_key_value_heads": 4,
    "n_routed_experts": 8,
}  # fmt: skip
# Half a prompt is chosen, of fewer a single one that rounding exchanges would be a large part. With 8 heads some tokens score
# just 0, as every head's relu gives it, and which of equal ones is chosen nobody has laid down.
_INDEX = {"index_topk": 12, "index_n_heads": 16, "index_head_dim": 16, "n_group": 1, "topk_group": 1}
_GATED = {
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
    "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 12, "linear_value_head_dim": 10, "num_hidden_layers": 4,
}  # fmt: skip
_GEMMA = {
    "num_experts": 8, "top_k_experts": 2, "enable_moe_block": True, "moe_intermediate_size": 24, "intermediate_size": 64,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 24, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "sliding_window": 6, "final_logit_softcapping": 30.0,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
_HYBRID = {
    "num_hidden_layers": 4, "num_key_value_heads": 2, "shared_intermediate_size": 40, "mamba_n_heads": 4, "mamba_d_head": "auto",
    "mamba_d_state": 12, "mamba_chunk_size": 16, "embedding_multiplier": 12.0, "attention_multiplier": 0.2,
    "residual_multiplier": 0.25, "logits_scaling": 6.0, "tie_word_embeddings": True,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_COMPRESSED = {
    "num_hidden_layers": 6, "head_dim": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "o_groups": 2, "o_lora_rank": 12,
    "moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "index_n_heads": 32, "index_head_dim": 12,
    "index_topk": 3, "sliding_window": 6, "hc_mult": 4, "swiglu_limit": 2.0, "layer_types": [
        "sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention",
        "heavily_compressed_attention", "compressed_sparse_attention",
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}


_KIMI = _LATENT | {
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.827,
    "rope_parameters": _YARN | {
        "rope_theta": 50000.0, "factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 1.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`config` for transformers beside what all tiny models share. `stream_factor` makes our residual stream theirs."""

    model_type: str
    config: dict[str, Any]
    stream_factor: float = 1.0
    published: str = ""  # the type under which it is, where another
    encoding: str = ""  # as published; the reference gets what the codes mean
    rewrite: Callable[[Path], None] = field(default=lambda folder: None)  # from what transformers saves to what is published


def _edit(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    """Rewrites the tensors of a folder."""

    def rewrite(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = change(load_file(file))
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)

    return rewrite


def _with_next_token_head(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As DeepSeek and GLM publish it: a layer more, with experts and matrices of its own."""
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    head = {
        name.replace(f"layers.{last}.", f"layers.{last + 1}."): tensor.clone()
        for name, tensor in tensors.items()
        if f"layers.{last}." in name
    }
    return tensors | head | {f"model.layers.{last + 1}.eh_proj.weight": torch.randn(32, 64)}


def _as_deepseek_publishes(folder: Path) -> None:
    """DeepSeek-V4's own names and keys, with a layer that guesses further tokens."""

    def rename(tensors: Tensors) -> Tensors:
        usual = {"model.embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}
        renamed = {}
        for name, tensor in tensors.items():
            own = usual.get(name, name).removeprefix("model.").replace("hc_head.hc_", "hc_head_")
            renamed[own.replace(".attn.norm.", ".attn.kv_norm.")] = tensor
        last = {name: tensor for name, tensor in renamed.items() if name.startswith("layers.5.")}
        further = {name.replace("layers.5.", "mtp.0."): tensor.clone() for name, tensor in last.items()}
        return renamed | further | {"mtp.0.e_proj.weight": torch.randn(32, 32)}

    _edit(rename)(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for key in ("layer_types", "mlp_layer_types", "compress_rates", "rope_parameters", "partial_rotary_factor"):
        del config[key]
    own = ROWS["deepseek_v4, as published"].config
    published = {key: own[key] for key in ("compress_ratios", "num_hash_layers", "rope_scaling")}
    file.write_text(json.dumps(config | published | {"compress_ratios": [*own["compress_ratios"], 0]}))


def _fused(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts of a layer stacked in two tensors, gate before up."""
    found: dict[tuple[str, str], dict[int, torch.Tensor]] = {}
    others = {}
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition(".experts.")
        if not rest or tensor.ndim == 3:
            others[name] = tensor
            continue
        number, part, _ = rest.split(".")
        found.setdefault((f"{prefix}.experts", part), {})[int(number)] = tensor
    stacked = {key: torch.stack([by_number[number] for number in sorted(by_number)]) for key, by_number in found.items()}
    for prefix in {prefix for prefix, _ in stacked}:
        others[f"{prefix}.gate_up_proj"] = torch.cat((stacked[prefix, "gate_proj"], stacked[prefix, "up_proj"]), dim=1)
        others[f"{prefix}.down_proj"] = stacked[prefix, "down_proj"]
    return others


def _nested(model_type: str, arrange: Callable[[Tensors], Tensors] = _fused) -> Callable[[Path], None]:
    """As models that also see are published, with a tower and a head that guesses further tokens beside the text."""

    def rewrite(folder: Path) -> None:
        _edit(arrange)(folder)
        _edit(_under_language_model)(folder)
        file = folder / "config.json"
        vision = {"hidden_size": 7, "num_hidden_layers": 2, "model_type": "vision"}
        file.write_text(
            json.dumps({"model_type": model_type, "text_config": json.loads(file.read_text()), "vision_config": vision})
        )

    return rewrite


def _under_language_model(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    nested = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    others = {
        "model.visual.blocks.0.mlp.experts.weight": torch.ones(2, 2),
        "mtp.layers.0.mlp.experts.down_proj": torch.ones(8, 32, 24),
    }
    return nested | others


def _as_kimi(folder: Path) -> None:
    """The type of its own and rotary embedding in the former spelling, as the published configuration has them."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    rope = config.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    file.write_text(json.dumps(config | {"model_type": "kimi_k2", "rope_theta": theta, "rope_scaling": rope}))


def _as_kimi_that_sees(folder: Path) -> None:
    """Kimi K2.5 and later: the text of K2 under a name of its own, beside a tower."""
    _as_kimi(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({"model_type": "kimi_k25", "text_config": json.loads(file.read_text())}))
    _edit(_beside_tower)(folder)


def _beside_tower(tensors: Tensors) -> Tensors:
    nested = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    return nested | {
        "vision_tower.encoder.blocks.0.wqkv.weight": torch.ones(2, 2),
        "mm_projector.linear_1.weight": torch.ones(2, 2),
    }


def _as_granite(folder: Path) -> None:
    """Layers in the words of the published configuration."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    words = {"linear_attention": "mamba", "full_attention": "attention"}
    kinds = [words[kind] for kind in config["layer_types"]]
    file.write_text(json.dumps(config | {"layer_types": kinds, "position_embedding_type": "nope"}))


ROWS: dict[str, Row] = {
    "mixtral": Row("mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 48, "num_key_value_heads": 2}),
    "mixtral, window, tied": Row("mixtral", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48, "num_key_value_heads": 4, "sliding_window": 5,
        "tie_word_embeddings": True, "head_dim": 16,
    }),
    "qwen3_moe, YaRN": Row("qwen3_moe", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 16,
        "norm_topk_prob": True, "rope_parameters": _YARN,
    }),
    "qwen3_moe, a dense layer": Row("qwen3_moe", {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "intermediate_size": 64,
        "num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "norm_topk_prob": True, "mlp_only_layers": [1],
    }),
    "qwen3_moe, raw weights": Row("qwen3_moe", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_key_value_heads": 4, "head_dim": 8,
        "norm_topk_prob": False,
    }),
    "gpt_oss, BF16 layout": Row("gpt_oss", {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16,
        "sliding_window": 7, "rope_parameters": _YARN | {"truncate": False},
    }),
    "qwen2_moe": Row("qwen2_moe", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "intermediate_size": 64,
        "shared_expert_intermediate_size": 40, "num_key_value_heads": 2, "mlp_only_layers": [0],
    }),
    "olmoe": Row("olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "num_key_value_heads": 2}),
    "olmoe, clipped": Row("olmoe", {
        "num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "clip_qkv": 0.7, "norm_topk_prob": True,
    }),
    "phimoe, LongRoPE": Row("phimoe", {
        "num_local_experts": 8, "intermediate_size": 24, "num_key_value_heads": 2, "attention_bias": True, "lm_head_bias": True,
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64, "short_mscale": 1.2,
            "long_mscale": 1.3, "short_factor": [1.0, 1.5, 2.0, 4.0], "long_factor": [1.0, 3.0, 9.0, 20.0],
        },
    }),
    "granitemoe": Row("granitemoe", {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "num_key_value_heads": 2,
        "embedding_multiplier": 12.0, "attention_multiplier": 0.2, "residual_multiplier": 0.22, "logits_scaling": 6.0,
        "tie_word_embeddings": True,
    }, stream_factor=0.22),
    "granitemoeshared": Row("granitemoeshared", {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "shared_intermediate_size": 40,
        "num_key_value_heads": 2, "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.3,
        "logits_scaling": 4.0, "attention_bias": True,
    }, stream_factor=0.3),
    "granitemoehybrid": Row("granitemoehybrid", _HYBRID | {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "mamba_n_groups": 2,
    }, stream_factor=0.25, rewrite=_as_granite),
    "granitemoehybrid, turned": Row("granitemoehybrid", _HYBRID | {
        "num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 24, "position_embedding_type": "rope",
        "mamba_proj_bias": True, "mamba_conv_bias": False, "attention_bias": True, "tie_word_embeddings": False,
    }, stream_factor=0.25),
    "granitemoehybrid, no experts": Row("granitemoehybrid", _HYBRID | {
        "num_local_experts": 0, "num_experts_per_tok": 0,
    }, stream_factor=0.25, rewrite=_as_granite),
    "minimax_m2": Row("minimax_m2", {
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 24, "num_key_value_heads": 2, "head_dim": 16,
        "rotary_dim": 8,
    }),
    "lfm2_moe": Row("lfm2_moe", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "intermediate_size": 64,
        "num_key_value_heads": 2, "num_hidden_layers": 5, "num_dense_layers": 1, "routed_scaling_factor": 1.5,
        "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"],
    }),
    "lfm2_moe, biases": Row("lfm2_moe", {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "intermediate_size": 64,
        "num_key_value_heads": 4, "num_dense_layers": 0, "conv_bias": True, "use_expert_bias": False,
        "norm_topk_prob": False, "layer_types": ["conv", "conv", "full_attention"],
    }),
    "glm4_moe": Row("glm4_moe", {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "intermediate_size": 64, "head_dim": 16,
        "num_key_value_heads": 2, "attention_bias": True, "use_qk_norm": True, "routed_scaling_factor": 1.5,
    }),
    "glm4_moe, groups": Row("glm4_moe", {
        "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "intermediate_size": 64, "n_group": 4,
        "topk_group": 2, "num_key_value_heads": 4, "first_k_dense_replace": 2, "n_shared_experts": 2, "norm_topk_prob": False,
    }, rewrite=_edit(_with_next_token_head)),
    "glm4_moe_lite": Row("glm4_moe_lite", _LATENT | {"routed_scaling_factor": 1.8}),
    "deepseek_v2, as Lite": Row("deepseek_v2", _LATENT | {
        "q_lora_rank": None, "first_k_dense_replace": 1, "topk_method": "greedy", "routed_scaling_factor": 2.0,
        "rope_parameters": _YARN | {"mscale": 0.7, "mscale_all_dim": 0.8},
    }),
    "deepseek_v2, groups": Row("deepseek_v2", _LATENT | {
        "first_k_dense_replace": 0, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
        "attention_bias": True,
    }),
    "deepseek_v3, YaRN": Row("deepseek_v3", _LATENT | {
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
        "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    }, rewrite=_edit(_with_next_token_head)),
    "deepseek_v3, one group": Row("deepseek_v3", _LATENT | {
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "rope_interleave": False, "q_lora_rank": None,
    }),
    "deepseek_v32": Row("deepseek_v32", _LATENT | _INDEX | {
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    }),
    "glm_moe_dsa": Row("glm_moe_dsa", _LATENT | _INDEX | {
        "first_k_dense_replace": 1, "routed_scaling_factor": 2.5,
    }, rewrite=_edit(_with_next_token_head)),
    "glm_moe_dsa, shared choices": Row("glm_moe_dsa", _LATENT | _INDEX | {
        "num_hidden_layers": 4, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "indexer_types": ["full", "shared", "full", "shared"],
    }),
    "kimi_k2": Row("deepseek_v3", _KIMI, published="kimi_k2", rewrite=_as_kimi),
    "kimi_k25, as published": Row("deepseek_v3", _KIMI, published="kimi_k25", rewrite=_as_kimi_that_sees),
    "deepseek_v4": Row("deepseek_v4", _COMPRESSED),
    "deepseek_v4, as published": Row("deepseek_v4", _COMPRESSED | {
        "layer_types": None, "compress_rates": None, "compress_ratios": [0, 0, 4, 128, 4, 128], "num_hash_layers": 2, "index_topk": 64,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1},
    }, rewrite=_as_deepseek_publishes),
    "qwen3_next": Row("qwen3_next", _GATED | {"mlp_only_layers": [1], "intermediate_size": 64}),
    "qwen3_5_moe": Row("qwen3_5_moe_text", _GATED),
    "qwen3_5_moe, as published": Row("qwen3_5_moe_text", _GATED, published="qwen3_5_moe", rewrite=_nested("qwen3_5_moe")),
    "qwen3_5_moe, fused experts": Row("qwen3_5_moe_text", _GATED, rewrite=_edit(_fused)),
    "llama, stretched": Row("llama", {
        "intermediate_size": 64, "num_key_value_heads": 2, "attention_bias": True, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        },
    }),
    "qwen3": Row("qwen3", {"intermediate_size": 64, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
    "gemma4": Row("gemma4_text", _GEMMA),
    "gemma4, as published": Row("gemma4_text", _GEMMA, published="gemma4", rewrite=_nested("gemma4")),
    "gemma4, own values": Row("gemma4_text", _GEMMA | {
        "attention_k_eq_v": False, "final_logit_softcapping": None, "global_head_dim": 8,
    }),
}  # fmt: skip


def _encoded(row: Row, encoding: str) -> Row:
    """With sizes that the encoding's blocks divide, or just do not; nested where that is how it is published."""
    if encoding == _BLOCKS:
        return replace(row, config=row.config | {"hidden_size": 64, "intermediate_size": 96}, encoding=encoding)
    form = ENCODINGS[encoding]
    sizes = {key: form.inner for key in _INNER if key in row.config}
    if "moe_intermediate_size" not in row.config and row.model_type not in _DENSE:
        sizes["intermediate_size"] = form.inner
    config = row.config | sizes | {"hidden_size": form.hidden}
    if row.model_type == "qwen3_5_moe_text":
        return replace(
            row, config=config, encoding=encoding, published="qwen3_5_moe", rewrite=_nested("qwen3_5_moe", _separate)
        )
    return replace(row, config=config, encoding=encoding)


def _separate(tensors: Tensors) -> Tensors:
    return tensors


_BLOCKS = "MXFP4 blocks"
_DENSE = ("llama", "qwen3")
_INNER = ("moe_intermediate_size", "intermediate_size", "shared_expert_intermediate_size")
ENCODED: dict[str, Row] = {
    f"{name} in {encoding}": _encoded(ROWS[name], encoding) for name, encodings in PUBLISHED.items() for encoding in encodings
}


@dataclass(frozen=True)
class Golden:
    """What transformers makes of a timeline: the stream after each layer [L, T, H] and logits [T, V], also without experts."""

    folder: Path
    row: Row
    tokens: list[int]
    stream: torch.Tensor
    logits: torch.Tensor
    without_experts: torch.Tensor
    in_bf16: torch.Tensor  # logits of a pass in that type


@dataclass(frozen=True)
class Errors:
    """The largest relative difference of any position (and layer), by Euclidean norm."""

    stream: float
    prefill: float
    decode: float
    rewind: float

    @property
    def largest(self) -> float:
        return max(self.stream, self.prefill, self.decode, self.rewind)


def tiny_config(name: str) -> Any:
    """Of a row, as transformers holds it."""
    import transformers

    row = (ROWS | ENCODED)[name]
    return transformers.CONFIG_MAPPING[row.model_type](**_COMMON | row.config)


def make_golden(name: str, folder: Path, count: int = _TOKENS) -> Golden:
    """Matrices times 8, or a forgotten expert would hide below the tolerance; biases, sinks and norms are drawn too."""
    import transformers

    row, auto = (ROWS | ENCODED)[name], cast(Any, transformers.AutoModelForCausalLM)
    torch.manual_seed(0)
    model = auto.from_config(tiny_config(name)).float().eval()
    with torch.no_grad():
        for key, weight in [*model.named_parameters(), *model.named_buffers()]:
            if key.endswith("tid2eid"):
                weight.copy_(torch.rand(len(weight), model.config.n_routed_experts).argsort()[:, : weight.shape[1]])
            if "inv_freq" in key or "A_log" in key or weight.dtype != torch.float32:
                continue
            if key.endswith("position_bias"):
                weight.add_(torch.randn_like(weight))
            elif weight.ndim > 1 and "embed" not in key and "lm_head" not in key:
                weight.mul_(8)
            elif weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    if row.encoding:
        plain = load_file(folder / "model.safetensors")
        is_dense = row.model_type in _DENSE
        coded, meant = (
            encode_blocks(plain) if row.encoding == _BLOCKS else encode(plain, ENCODINGS[row.encoding], is_dense=is_dense)
        )
        save_file(meant, folder / "model.safetensors", {"format": "pt"})
        model = auto.from_pretrained(folder).eval()
        save_file({name: tensor.contiguous() for name, tensor in coded.items()}, folder / "model.safetensors")
        if row.encoding in ENCODINGS:
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(
                json.dumps(config | {"quantization_config": ENCODINGS[row.encoding].quantization})
            )
    row.rewrite(folder)
    tokens = torch.randint(0, 128, (count,), generator=torch.Generator().manual_seed(1)).tolist()
    streams: list[torch.Tensor] = []
    inner = model.model.language_model if hasattr(model.model, "language_model") else model.model

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        streams.append((output[0] if isinstance(output, tuple) else output)[0].clone())

    hooks = [layer.register_forward_hook(keep) for layer in inner.layers]
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
        for hook in hooks:
            hook.remove()
        shorter = copy.deepcopy(model)
        for weight in shorter.parameters():
            weight.data = weight.data.bfloat16()
        in_bf16 = shorter(torch.tensor([tokens])).logits[0].float()
        for key, weight in model.named_parameters():
            is_expert = ".experts." in key or row.model_type in _DENSE
            is_only = row.config.get("num_local_experts") == 0 and "shared_mlp.output_linear" in key
            if is_only or (is_expert and "shared" not in key and "down_proj" in key):
                weight.mul_(0)
        without = model(torch.tensor([tokens])).logits[0]
    return Golden(folder, row, tokens, torch.stack(streams), logits, without, in_bf16)


def measure(golden: Golden, kernels: Kernels, slots: int | None = None) -> Errors:
    """Our passes over the same timeline, `slots` experts of each layer in memory; None for all."""
    tokens = golden.tokens
    with session_on(golden.folder, slots, kernels) as (session, _):
        streams = _watched(session, golden.row.stream_factor)
        prefill = _difference(session.sync(tokens[:_PROMPT])[0], golden.logits[_PROMPT - 1])
        decode = max(_difference(session.step(tokens[at])[0], golden.logits[at]) for at in range(_PROMPT, _TOKENS))
        stream = max(
            _difference(ours, theirs)
            for layer, wanted in enumerate(golden.stream)
            for ours, theirs in zip(torch.cat(streams[layer]), wanted, strict=True)
        )
        session.rewind(_BACK)
        rewind = _difference(session.step(tokens[_BACK])[0], golden.logits[_BACK])
        session.rewind(_BACK - 3)
        rewind = max(rewind, _difference(session.sync(tokens[:31])[0], golden.logits[30]))
    return Errors(stream, prefill, decode, rewind)


def differences(golden: Golden, kernels: Kernels, kv_type: KvType) -> torch.Tensor:
    """Of the logits [T], token by token, with keys and values kept in that type."""
    with session_on(golden.folder, kernels=kernels, kv_type=kv_type) as (session, _):
        pairs = [(session.step(token)[0], golden.logits[position]) for position, token in enumerate(golden.tokens)]
    return torch.tensor([_difference(ours, theirs) for ours, theirs in pairs])


def differences_in_bf16(golden: Golden) -> torch.Tensor:
    """The same of the reference's own pass in bf16."""
    return torch.tensor([_difference(*pair) for pair in zip(golden.in_bf16, golden.logits, strict=True)])


def _watched(session: Session, factor: float) -> list[list[torch.Tensor]]:
    """Copies of the stream [T, H] after each layer of the passes to come."""
    decoder: Any = session._parts.model
    streams: list[list[torch.Tensor]] = [[] for _ in decoder._blocks]

    def watch(block: Any, kept: list[torch.Tensor]) -> Callable[..., None]:
        def run(x: torch.Tensor, *arguments: Any) -> None:
            block(x, *arguments)
            kept.append(x * factor)

        return run

    decoder._blocks = [watch(block, kept) for block, kept in zip(decoder._blocks, streams, strict=True)]
    return streams


def _difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())
