"""Logits against transformers, the independent reference, for every architecture: prefill, token by token, after a rewind."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.tiny import kernels_named, session_on

transformers = pytest.importorskip("transformers", reason="the reference for parity is not installed")

_TINY: dict[str, dict[str, Any]] = {
    "mixtral": {
        "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 48, "hidden_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 256,
    },
    "mixtral-window": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 48, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "sliding_window": 5, "tie_word_embeddings": True,
        "head_dim": 16,
    },
    "qwen3_moe-yarn": {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "norm_topk_prob": True,
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32,
        },
    },
    "qwen3_moe": {
        "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "intermediate_size": 64, "hidden_size": 32,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128,
        "norm_topk_prob": True, "mlp_only_layers": [1], "max_position_embeddings": 256,
    },
    "qwen3_moe-raw-weights": {
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8, "vocab_size": 128, "norm_topk_prob": False,
    },
}  # fmt: skip


def _reference(name: str, folder: Path) -> Any:
    """A random model saved in hub layout; matrices times 8, or a forgotten expert would hide below the tolerance."""
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[name.split("-")[0]](**_TINY[name])
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in key and "lm_head" not in key:
                weight.mul_(8)
            elif weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("name", _TINY)
@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
def test_logits_equal_the_reference(name: str, kernels: str, tmp_path: Path) -> None:
    model = _reference(name, tmp_path)
    tokens = torch.randint(0, 128, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
        for layer in model.model.layers:
            if hasattr(layer.mlp, "experts"):
                layer.mlp.experts.down_proj.mul_(0)
        without_experts = model(torch.tensor([tokens])).logits[0]
    assert (expected - without_experts).abs().max() > 0.05, (
        "the experts of this checkpoint do not matter: the test proves nothing"
    )

    with session_on(tmp_path, kernels=kernels_named(kernels)) as (session, _):
        prefill, _ = session.sync(tokens[:24])
        torch.testing.assert_close(prefill, expected[23], atol=1e-4, rtol=1e-4)
        for position in range(24, 40):
            logits, _ = session.step(tokens[position])
            torch.testing.assert_close(logits, expected[position], atol=1e-4, rtol=1e-4)
        session.rewind(10)
        again, _ = session.sync(tokens[:31])
        torch.testing.assert_close(again, expected[30], atol=1e-4, rtol=1e-4)
