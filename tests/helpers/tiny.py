"""Tiny random checkpoints in hub layout, written without the engine's own reader, and a session over any of them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.config import KvType, Wishes
from engine.engine import plan_for
from engine.errors import EngineError
from engine.experts.policy import Expert
from engine.experts.vram import Device
from engine.kernels.kernels import Kernels
from engine.kernels.native import Native
from engine.kernels.reference import Reference
from engine.parts import open_parts
from engine.protocol import Plan
from engine.session import FallBack, Session
from engine.source import inspect
from engine.tiers.disk import DiskReader

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "tie_word_embeddings": False,
}
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_mixtral(folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any) -> Path:
    """A random Mixtral whose experts matter: matrices drawn so that zeroing one moves the logits visibly."""
    config = MIXTRAL | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 0.16) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    hidden, inner, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"] * 8
    tensors = {
        "model.embed_tokens.weight": draw(config["vocab_size"], hidden, scale=1.0),
        "model.norm.weight": torch.ones(hidden, dtype=dtype),
        "lm_head.weight": draw(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}{norm}.weight"] = torch.ones(hidden, dtype=dtype)
        for name, rows, columns in (("q", hidden, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, hidden)):
            tensors[f"{block}self_attn.{name}_proj.weight"] = draw(rows, columns)
        tensors[f"{block}block_sparse_moe.gate.weight"] = draw(config["num_local_experts"], hidden, scale=0.5)
        for expert in range(config["num_local_experts"]):
            for part, shape in (("w1", (inner, hidden)), ("w2", (hidden, inner)), ("w3", (inner, hidden))):
                tensors[f"{block}block_sparse_moe.experts.{expert}.{part}.weight"] = draw(*shape)
    save_file(tensors, folder / "model.safetensors")
    write_text_files(folder)
    return folder


def write_text_files(folder: Path) -> None:
    """A byte-level tokenizer of 256 + 3 tokens and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE}))


def kernels_named(name: str) -> Kernels:
    """ "reference", or "native" with the exact batches; skips where the library is not built."""
    if name == "reference":
        return Reference()
    try:
        return Native(2, fast=False)
    except EngineError as error:
        pytest.skip(str(error))


@contextmanager
def session_on(
    folder: Path,
    slots_per_layer: int | None = None,
    kernels: Kernels | None = None,
    heat: Mapping[Expert, float] | None = None,
    room: Callable[[], int] = lambda: 1 << 40,
    devices: Sequence[Device] = (),
    vram_slots: int | tuple[int, ...] = 0,
    fall_back: FallBack | None = None,
    **wishes: Any,
) -> Iterator[tuple[Session, Plan]]:
    """A session without tokenizer; `slots_per_layer` and `vram_slots`, for each card, override what the planner would give."""
    source = inspect(folder)
    plan = plan_for(source, Wishes(**{"context": 256, "kv_type": KvType.FP32, **wishes}))
    if slots_per_layer is not None:
        plan = replace(plan, slots_per_layer=(slots_per_layer,) * plan.num_layers)
    plan = replace(plan, card_slots=vram_slots if isinstance(vram_slots, tuple) else (vram_slots,) * bool(vram_slots))
    reader = DiskReader()
    try:
        ours = kernels or Reference()
        yield (
            Session(open_parts(source, plan, reader, ours, heat=heat, room=room, devices=devices), reader, fall_back),
            plan,
        )
    finally:
        reader.close()
