"""Writes a synthetic checkpoint a second time, as GGUF, so that llama.cpp computes the same model. Runs neither.

Knows two of llama.cpp's architectures, qwen3moe and gpt-oss. Each tensor is converted when it is written: one is in memory.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from engine.checkpoint.index import Checkpoint, open_checkpoint
from tests.perf import gguf_blocks as blocks
from tests.perf.gguf_blocks import Array, Blocks

Tensor = tuple[str, Type, tuple[int, ...], Callable[[], Array]]  # name, type, shape in weights, bytes
_NUMPY = {
    "BF16": np.uint16, "F16": np.float16, "F32": np.float32, "U8": np.uint8, "F8_E4M3": np.uint8, "I32": np.int32,
}  # fmt: skip
_ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}


def write_twin(folder: Path, path: Path, dense: Type = Type.BF16) -> Path:
    """Write `path` from the checkpoint in `folder`; `dense` is the type of what is plain there: BF16 is exact, F16 too at these weights' sizes.

    Raises KeyError for an architecture that is not known here. An existing file of the same recipe is kept.
    """
    recipe = f"{(folder / 'synthetic.json').read_text()} dense {dense.name}"
    note = path.with_suffix(".recipe")
    if path.is_file() and note.is_file() and note.read_text() == recipe:
        return path
    checkpoint = open_checkpoint(folder)
    arch = _ARCHITECTURES[checkpoint.config["model_type"]]
    tensors = list(_tensors(_Source(checkpoint, dense)))
    partial = path.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, arch)
    _write_keys(writer, arch, checkpoint.config)
    for name, kind, shape, _ in tensors:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        nbytes = int(np.prod(shape)) // block * size
        writer.add_tensor_info(name, shape, np.dtype(np.float32), nbytes, raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, _, _, produce in tensors:
            writer.write_tensor_data(produce())
        writer.close()
        partial.rename(path)
        note.write_text(recipe)
    finally:
        partial.unlink(missing_ok=True)
    return path


def _write_keys(writer: gguf.GGUFWriter, arch: str, config: dict[str, Any]) -> None:
    expert_size = config.get("moe_intermediate_size") or config["intermediate_size"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(expert_size)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")  # token ids alone
    if arch == "gpt-oss":
        writer.add_sliding_window(config["sliding_window"])
        scaling = config["rope_scaling"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


class _Source:
    """A checkpoint's tensors as arrays on the mapped file."""

    def __init__(self, checkpoint: Checkpoint, dense: Type) -> None:
        self.config, self.dense, self._tensors = checkpoint.config, dense, checkpoint.tensors
        self.num_experts = int(self.config.get("num_experts") or self.config["num_local_experts"])

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def dtype(self, name: str) -> str:
        return self._tensors[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def codes(self, name: str) -> Array:
        ref = self._tensors[name]
        if not ref.shape:
            return np.fromfile(ref.file, _NUMPY[ref.dtype], 1, offset=ref.offset)[0]  # type: ignore[no-any-return]
        mapped: Array = np.memmap(ref.file, _NUMPY[ref.dtype], "r", ref.offset, ref.shape)
        return mapped

    def floats(self, name: str) -> Array:
        return blocks.to_float(self.codes(name), self.dtype(name))

    def linear(self, base: str) -> Blocks:
        """The layer's weight as `linear_type`."""
        weight, scale = f"{base}.weight", f"{base}.weight_scale"
        match self.linear_type(base):
            case Type.Q4_0:
                codes, scales = self.codes(f"{base}.weight_packed"), self.floats(scale)
                return blocks.int4(codes, scales, 8 * codes.shape[1] // scales.shape[1])
            case Type.Q8_0:
                block = self.config["quantization_config"]["weight_block_size"][0]
                return blocks.fp8(self.codes(weight), self.floats(f"{base}.weight_scale_inv"), block)
            case Type.MXFP4:
                return blocks.mxfp4(self.codes(weight), self.codes(scale))
            case Type.NVFP4:
                return blocks.nvfp4(self.codes(weight), self.codes(scale))
        return blocks.plain(self.codes(weight), self.dtype(weight), self.dense)

    def linear_type(self, base: str) -> Type:
        """The GGUF type that holds the layer's weight best."""
        if f"{base}.weight_packed" in self:
            return Type.Q4_0
        if f"{base}.weight_scale_inv" in self:
            return Type.Q8_0
        if f"{base}.weight_scale_2" in self:
            return Type.NVFP4
        return Type.MXFP4 if f"{base}.weight_scale" in self else self.dense


def _tensors(source: _Source) -> Iterator[Tensor]:
    config = source.config
    hidden, inner = config["hidden_size"], config.get("moe_intermediate_size") or config["intermediate_size"]
    yield _matrix(source, "token_embd", "model.embed_tokens", (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}", f"blk.{layer}"
        yield from _attention(source, ours, theirs)
        if config["model_type"] == "gpt_oss":
            yield _small(source, f"{theirs}.post_attention_norm.weight", f"{ours}.post_attention_layernorm.weight")
            yield _small(source, f"{theirs}.attn_sinks.weight", f"{ours}.self_attn.sinks")
            yield _small(source, f"{theirs}.ffn_gate_inp.weight", f"{ours}.mlp.router.weight")
            yield _small(source, f"{theirs}.ffn_gate_inp.bias", f"{ours}.mlp.router.bias")
            yield from _fused_experts(source, f"{ours}.mlp.experts", theirs, hidden, inner)
        else:
            yield _small(source, f"{theirs}.ffn_norm.weight", f"{ours}.post_attention_layernorm.weight")
            yield _small(source, f"{theirs}.attn_q_norm.weight", f"{ours}.self_attn.q_norm.weight")
            yield _small(source, f"{theirs}.attn_k_norm.weight", f"{ours}.self_attn.k_norm.weight")
            yield _small(source, f"{theirs}.ffn_gate_inp.weight", f"{ours}.mlp.gate.weight")
            for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                yield from _own_experts(source, f"{ours}.mlp.experts", f"{theirs}.ffn_{part}_exps", f"{part}_proj", shape)
    yield _small(source, "output_norm.weight", "model.norm.weight")
    yield _matrix(source, "output", "lm_head", (config["vocab_size"], hidden))
    if "lm_head.weight_scale_2" in source:
        yield _scalars("output.scale", ["lm_head.weight_scale_2"], source)


def _attention(source: _Source, ours: str, theirs: str) -> Iterator[Tensor]:
    config = source.config
    query, keys = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    hidden = config["hidden_size"]
    yield _small(source, f"{theirs}.attn_norm.weight", f"{ours}.input_layernorm.weight")
    for name, which, shape in (
        ("attn_q", "q", (query, hidden)),
        ("attn_k", "k", (keys, hidden)),
        ("attn_v", "v", (keys, hidden)),
        ("attn_output", "o", (hidden, query)),
    ):
        base = f"{ours}.self_attn.{which}_proj"
        yield _matrix(source, f"{theirs}.{name}", base, shape)
        if f"{base}.weight_scale_2" in source:
            yield _scalars(f"{theirs}.{name}.scale", [f"{base}.weight_scale_2"], source)
        if f"{base}.bias" in source:
            yield _small(source, f"{theirs}.{name}.bias", f"{base}.bias")


def _small(source: _Source, theirs: str, ours: str) -> Tensor:
    """Norms, biases and routers: F32, as llama.cpp's own converter keeps them."""
    return theirs, Type.F32, source.shape(ours), lambda: source.floats(ours)


def _matrix(source: _Source, theirs: str, ours: str, shape: tuple[int, int]) -> Tensor:
    return f"{theirs}.weight", source.linear_type(ours), shape, lambda: source.linear(ours)[1]


def _scalars(theirs: str, ours: list[str], source: _Source) -> Tensor:
    return theirs, Type.F32, (len(ours),), lambda: np.array([source.codes(name) for name in ours], dtype=np.float32)


def _own_experts(source: _Source, ours: str, theirs: str, part: str, shape: tuple[int, int]) -> Iterator[Tensor]:
    bases = [f"{ours}.{expert}.{part}" for expert in range(source.num_experts)]
    kind = source.linear_type(bases[0])
    yield f"{theirs}.weight", kind, (len(bases), *shape), lambda: np.stack([source.linear(base)[1] for base in bases])
    if f"{bases[0]}.weight_scale_2" in source:
        yield _scalars(f"{theirs}.scale", [f"{base}.weight_scale_2" for base in bases], source)


def _fused_experts(source: _Source, ours: str, theirs: str, hidden: int, inner: int) -> Iterator[Tensor]:
    """gpt-oss: rows of gate and up alternate in one tensor; down is whole."""
    for part, name, rows, shape in (
        ("gate", "gate_up_proj", slice(0, None, 2), (inner, hidden)),
        ("up", "gate_up_proj", slice(1, None, 2), (inner, hidden)),
        ("down", "down_proj", slice(None), (hidden, inner)),
    ):
        base, count = f"{ours}.{name}", source.num_experts
        kind = Type.MXFP4 if f"{base}_blocks" in source else source.dense
        yield f"{theirs}.ffn_{part}_exps.weight", kind, (count, *shape), _fused_rows(source, base, rows)
        yield f"{theirs}.ffn_{part}_exps.bias", Type.F32, (count, shape[0]), _bias_rows(source, f"{base}_bias", rows)


def _fused_rows(source: _Source, base: str, rows: slice) -> Callable[[], Array]:
    def produce() -> Array:
        if f"{base}_blocks" in source:
            return blocks.mxfp4(source.codes(f"{base}_blocks")[:, rows], source.codes(f"{base}_scales")[:, rows])[1]
        stored = source.codes(base)  # [E, in, out]
        return blocks.plain(stored[:, :, rows].transpose(0, 2, 1), source.dtype(base), source.dense)[1]

    return produce


def _bias_rows(source: _Source, name: str, rows: slice) -> Callable[[], Array]:
    return lambda: np.ascontiguousarray(source.floats(name)[:, rows])
