"""gpt-oss in its published layout, MXFP4 `_blocks` and `_scales`, against transformers run on the dequantised weights."""

import copy as copies
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.tiny import kernels_named, session_on

transformers = pytest.importorskip("transformers", reason="the reference for parity is not installed")
_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])  # E2M1, OCP Microscaling Formats 1.0
_TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2, "vocab_size": 128, "sliding_window": 7,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    },
}  # fmt: skip


def _encode(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[..., in] to blocks [..., in / 32, 16], scales [..., in / 32] and the values that they mean."""
    grouped = matrix.reshape(*matrix.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(grouped.abs().amax(-1).clamp(min=1e-20))) - 2
    scaled = grouped / torch.exp2(exponent)[..., None]
    codes = (scaled.abs()[..., None] - _VALUES).abs().argmin(-1)
    meant = _VALUES[codes] * scaled.sign() * torch.exp2(exponent)[..., None]
    nibbles = (codes + 8 * (scaled < 0)).to(torch.uint8)
    return nibbles[..., 0::2] | nibbles[..., 1::2] << 4, (exponent + 127).to(torch.uint8), meant.flatten(-2)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder as gpt-oss is published, and the reference with the same weights."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt-oss")
    model = transformers.AutoModelForCausalLM.from_config(transformers.CONFIG_MAPPING["gpt_oss"](**_TINY)).float().eval()
    tensors: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in name and "lm_head" not in name:
                weight.copy_(0.16 * torch.randn_like(weight))
            elif ("norm" not in name and weight.ndim == 1) or name.endswith("bias") or "sinks" in name:
                weight.copy_(0.3 * torch.randn_like(weight))
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                blocks, scales, meant = _encode(weight.transpose(1, 2))
                weight.copy_(meant.transpose(1, 2))
                tensors |= {f"{name}_blocks": blocks.contiguous(), f"{name}_scales": scales.contiguous()}
            else:
                tensors[name] = weight.detach().clone()
    model.config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder, model


@pytest.mark.filterwarnings("ignore")  # the reference warns about its own affairs
@pytest.mark.parametrize("slots", [2, 6])
@pytest.mark.parametrize(("kernels", "tolerance"), [("reference", 1e-4), ("native", 3e-2)])  # native: int8 activations
def test_published_layout_equals_the_reference(published: tuple[Path, Any], kernels: str, tolerance: float, slots: int) -> None:
    folder, model = published
    tokens = torch.randint(0, 128, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = model(torch.tensor([tokens])).logits[0]
    with session_on(folder, slots, kernels_named(kernels)) as (session, plan):
        assert plan.weight_format == "MXFP4"
        assert plan.expert_bytes == 3 * 64 * 96 // 2 + 3 * 64 * 96 // 32 + (2 * 96 + 64) * 4, "codes, scales and biases"
        for position, logits in [(23, session.sync(tokens[:24])[0])] + [(i, session.step(tokens[i])[0]) for i in range(24, 40)]:
            error = (logits - expected[position]).norm() / expected[position].norm()
            assert error < tolerance, f"at position {position}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kernels", ["reference", "native"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_experts_are_stored_by_columns(
    published: tuple[Path, Any], kernels: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """As releases in 16 bit are: gate_up_proj [E, H, 2I] with gate and up alternating, down_proj [E, I, H]."""
    folder, model = published
    copy = tmp_path / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.safetensors"))
    state = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    assert state["model.layers.0.mlp.experts.gate_up_proj"].shape == (6, 64, 192)
    save_file(state, copy / "model.safetensors")
    reference = copies.deepcopy(model)
    reference.load_state_dict({name: weight.float() for name, weight in state.items()})
    tokens = torch.randint(0, 128, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    with session_on(copy, 4, kernels_named(kernels)) as (session, plan):
        assert plan.weight_format == {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
        for position, logits in [(23, session.sync(tokens[:24])[0])] + [(i, session.step(tokens[i])[0]) for i in range(24, 40)]:
            torch.testing.assert_close(logits, expected[position], atol=1e-3, rtol=1e-3, msg=f"at position {position}")
