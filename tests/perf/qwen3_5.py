"""Every tensor of a synthetic Qwen3.5 or 3.6 MoE, text part, by its published name. Draws as `tests.perf.layout` does.

Published layouts: plain types fuse the experts of a layer (`experts.gate_up_proj` [E, 2 I, H], `experts.down_proj` [E, H, I]),
quantised ones keep a tensor for each (FP8: `weight` and `weight_scale_inv`). Three layers of four mix their context by a gated
delta rule. No vision tower, no layer for multi-token prediction.
Source: config.json and index of Qwen/Qwen3.6-35B-A3B; names and shapes of transformers' `Qwen3_5MoeForCausalLM`.
"""

import math
from collections.abc import Iterator

import numpy as np

from engine.checkpoint.write import TensorSpec
from tests.perf.encode import Array, Encoding, Part, Plain, encode_floats, generator
from tests.perf.layout import SCALES, Routing, draw_embedding, draw_plain, expert_stds
from tests.perf.shapes import Shape, is_full_attention, linear_heads

_CONVOLVED = 4  # positions


def parts(shape: Shape, encoding: Encoding, attention: Encoding, routing: Routing, seed: int) -> Iterator[Part]:
    """As `layout.parts`; `attention` encodes also the shared expert."""
    dense, root = encoding.dense_dtype, "model.language_model"
    embedding = TensorSpec(f"{root}.embed_tokens.weight", dense, (shape.vocab, shape.hidden))
    yield embedding, draw_embedding(embedding, routing, seed)
    for layer in range(shape.layers):
        block = f"{root}.layers.{layer}"
        yield _normal(f"{block}.input_layernorm.weight", dense, shape.hidden, 0.0, seed)  # norms multiply by 1 + weight
        yield from (_full if is_full_attention(layer) else _linear)(shape, block, dense, attention, seed)
        yield _normal(f"{block}.post_attention_layernorm.weight", dense, shape.hidden, 0.0, seed)
        router = TensorSpec(f"{block}.mlp.gate.weight", dense, (shape.num_experts, shape.hidden))
        yield draw_plain(router, SCALES.router / math.sqrt(shape.hidden), seed)
        yield from _experts(shape, f"{block}.mlp.experts", encoding, seed)
        for name, rows, cols, std in _swiglu(shape, shape.shared_size):
            yield from attention.parts(f"{block}.mlp.shared_expert.{name}", rows, cols, std, seed)
        shared_gate = TensorSpec(f"{block}.mlp.shared_expert_gate.weight", dense, (1, shape.hidden))
        yield draw_plain(shared_gate, 1 / math.sqrt(shape.hidden), seed)
    yield _normal(f"{root}.norm.weight", dense, shape.hidden, 0.0, seed)
    yield from attention.parts("lm_head", shape.vocab, shape.hidden, 1 / math.sqrt(shape.hidden), seed)


def not_quantised(shape: Shape, *, attention: bool) -> list[str]:
    """As `layout.not_quantised`."""
    modules = [] if attention else ["lm_head"]
    for layer in range(shape.layers):
        block = f"model.language_model.layers.{layer}"
        modules += [f"{block}.mlp.gate", f"{block}.mlp.shared_expert_gate"]
        if not is_full_attention(layer):
            modules += [f"{block}.linear_attn.{name}" for name in ("in_proj_a", "in_proj_b", "conv1d")]
        if not attention:
            modules += [f"{block}.mlp.shared_expert", f"{block}.{'self_attn' if is_full_attention(layer) else 'linear_attn'}"]
    return modules


def _full(shape: Shape, block: str, dense: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    """Grouped-query attention whose query projection also makes a gate."""
    base, hidden = f"{block}.self_attn", shape.hidden
    query, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows, cols in (("q", 2 * query, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, query)):
        gain = SCALES.attention if name == "o" else 1.0
        yield from encoding.parts(f"{base}.{name}_proj", rows, cols, gain / math.sqrt(cols), seed)
    for name in ("q_norm", "k_norm"):
        yield _normal(f"{base}.{name}.weight", dense, shape.head_dim, 0.0, seed)


def _linear(shape: Shape, block: str, dense: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    """Gated delta rule: queries, keys and values convolved over positions, a decay and a step for each value head."""
    base, hidden = f"{block}.linear_attn", shape.hidden
    key_heads, value_heads, dim = linear_heads(shape)
    keys, values = key_heads * dim, value_heads * dim
    std = 1 / math.sqrt(hidden)
    yield from encoding.parts(f"{base}.in_proj_qkv", 2 * keys + values, hidden, std, seed)
    yield from encoding.parts(f"{base}.in_proj_z", values, hidden, std, seed)
    for name in ("in_proj_b", "in_proj_a"):
        yield draw_plain(TensorSpec(f"{base}.{name}.weight", dense, (value_heads, hidden)), std, seed)
    convolution = TensorSpec(f"{base}.conv1d.weight", dense, (2 * keys + values, 1, _CONVOLVED))
    yield draw_plain(convolution, 1 / math.sqrt(_CONVOLVED), seed)
    yield _normal(f"{base}.dt_bias", dense, value_heads, 1.0, seed)
    decay = TensorSpec(f"{base}.A_log", dense, (value_heads,))
    yield (
        decay,
        lambda: encode_floats(np.log(generator(seed, decay.name).uniform(0.01, 16, value_heads)).astype(np.float32), dense),
    )
    yield _normal(f"{base}.norm.weight", dense, dim, 1.0, seed)
    yield from encoding.parts(f"{base}.out_proj", hidden, values, SCALES.attention / math.sqrt(values), seed)


def _swiglu(shape: Shape, width: int) -> tuple[tuple[str, int, int, float], ...]:
    wide, narrow = expert_stds(shape)
    return (
        ("gate_proj", width, shape.hidden, wide),
        ("up_proj", width, shape.hidden, wide),
        ("down_proj", shape.hidden, width, narrow),
    )


def _experts(shape: Shape, base: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    matrices = _swiglu(shape, shape.expert_size)
    if not isinstance(encoding, Plain):
        for expert in range(shape.num_experts):
            for name, rows, cols, std in matrices:
                yield from encoding.parts(f"{base}.{expert}.{name}", rows, cols, std, seed)
        return
    (_, rows, cols, wide), _, (_, down_rows, down_cols, narrow) = matrices
    count, dense = shape.num_experts, encoding.dense_dtype
    yield draw_plain(TensorSpec(f"{base}.gate_up_proj", dense, (count, 2 * rows, cols)), wide, seed)
    yield draw_plain(TensorSpec(f"{base}.down_proj", dense, (count, down_rows, down_cols)), narrow, seed)


def _normal(name: str, dtype: str, width: int, mean: float, seed: int) -> Part:
    spec = TensorSpec(name, dtype, (width,))

    def draw() -> Array:
        return encode_floats(generator(seed, name).normal(mean, 0.05, width).astype(np.float32), dtype)

    return spec, draw
