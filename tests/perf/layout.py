"""Every tensor of a synthetic checkpoint by its published name, in file order, with what draws it. Knows architectures, no files.

Experts lie whole and adjacent where they have tensors of their own. The scales are chosen for routing, see `SCALES`.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.checkpoint.write import TensorSpec
from tests.perf.encode import Array, Encoding, Mxfp4, Part, Plain, draw_e8m0, draw_floats, encode_floats, generator, raw_bytes
from tests.perf.shapes import Shape

Routing = Literal["uniform", "skewed"]
TOPICS = 16  # equal blocks of the vocabulary
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Scales:
    """What keeps routing as wanted.

    The router reads the normed residual stream. It routes each token by itself only if the embedding dominates there: with
    embeddings of 0.02, as trained ones have, random attention and experts are 50 times larger, all tokens of a context share
    one direction, and successive tokens route alike. So the embedding has unit variance, and what a block adds stays below a
    tenth of it (variance 0.02 per layer). The router's logits then spread by `router`, as trained ones do.

    Skew comes from the same effect, on purpose: a share of the embedding's variance that all tokens have in common makes some
    experts popular in every layer, and a share that the tokens of one topic have in common gives locality in time.
    """

    embedding: float = 1.0
    attention: float = 0.1  # of what attention adds to the first token of a context; later ones average and get less
    expert: float = 0.25  # of one expert's output; the weighted sum of k of them is smaller by about the root of k
    router: float = 1.5
    bias: float = 0.02
    common: float = 0.5  # skewed only: share of variance
    topic: float = 0.15


SCALES = Scales()


def parts(shape: Shape, encoding: Encoding, attention: Encoding, routing: Routing, seed: int) -> Iterator[Part]:
    """All tensors, from the embedding to the head. `attention` encodes the four projections and the head.

    Raises ValueError for a pair of architecture and encoding that no one publishes.
    """
    dense = encoding.dense_dtype
    embedding = TensorSpec("model.embed_tokens.weight", dense, (shape.vocab, shape.hidden))
    yield embedding, draw_embedding(embedding, routing, seed)
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        yield _norm(f"{block}.input_layernorm.weight", dense, shape.hidden, seed)
        yield from _attention(shape, f"{block}.self_attn", attention, seed)
        yield _norm(f"{block}.post_attention_layernorm.weight", dense, shape.hidden, seed)
        router = TensorSpec(f"{block}.{_ROUTERS[shape.model_type]}.weight", dense, (shape.num_experts, shape.hidden))
        yield draw_plain(router, SCALES.router / math.sqrt(shape.hidden), seed)
        if shape.model_type == "gpt_oss":
            yield draw_plain(TensorSpec(f"{block}.mlp.router.bias", dense, (shape.num_experts,)), SCALES.bias, seed)
            yield from _fused_experts(shape, f"{block}.mlp.experts", encoding, seed)
        else:
            yield from _own_experts(shape, block, encoding, seed)
    yield _norm("model.norm.weight", dense, shape.hidden, seed)
    yield from attention.parts("lm_head", shape.vocab, shape.hidden, 1 / math.sqrt(shape.hidden), seed)


def _attention(shape: Shape, base: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    dense, hidden = encoding.dense_dtype, shape.hidden
    query, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows, cols in (("q", query, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, query)):
        gain = SCALES.attention if name == "o" else 1.0
        yield from encoding.parts(f"{base}.{name}_proj", rows, cols, gain / math.sqrt(cols), seed)
        if shape.model_type == "gpt_oss":
            yield draw_plain(TensorSpec(f"{base}.{name}_proj.bias", dense, (rows,)), SCALES.bias, seed)
    if shape.model_type == "qwen3_moe":
        yield _norm(f"{base}.q_norm.weight", dense, shape.head_dim, seed)
        yield _norm(f"{base}.k_norm.weight", dense, shape.head_dim, seed)
    if shape.model_type == "gpt_oss":
        yield draw_plain(TensorSpec(f"{base}.sinks", dense, (shape.heads,)), 1.0, seed)


_ROUTERS = {"qwen3_moe": "mlp.gate", "mixtral": "block_sparse_moe.gate", "gpt_oss": "mlp.router"}
_OWN_EXPERTS = {
    "qwen3_moe": ("mlp.experts", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("block_sparse_moe.experts", ("w1", "w3", "w2")),
}
_GLU_RMS = 0.6  # of silu(a) * b, and near it for gpt-oss's activation, with a and b normal


def expert_stds(shape: Shape) -> tuple[float, float]:
    """Of gate and up, and of down: pre-activations of unit variance, outputs of `SCALES.expert`."""
    return 1 / math.sqrt(shape.hidden), SCALES.expert / math.sqrt(shape.expert_size) / _GLU_RMS


def not_quantised(shape: Shape, *, attention: bool) -> list[str]:
    """Module names for quantization_config: the routers and, unless `attention` is quantised, its projections and the head."""
    modules = [] if attention else ["lm_head"]
    for layer in range(shape.layers):
        modules.append(f"model.layers.{layer}.{_ROUTERS[shape.model_type]}")
        if not attention:
            modules += [f"model.layers.{layer}.self_attn.{which}_proj" for which in "qkvo"]
    return modules


def _own_experts(shape: Shape, block: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    folder, names = _OWN_EXPERTS[shape.model_type]
    wide, narrow = expert_stds(shape)
    for expert in range(shape.num_experts):
        for name in names:
            base = f"{block}.{folder}.{expert}.{name}"
            if name == names[-1]:
                yield from encoding.parts(base, shape.hidden, shape.expert_size, narrow, seed)
            else:
                yield from encoding.parts(base, shape.expert_size, shape.hidden, wide, seed)


def _fused_experts(shape: Shape, base: str, encoding: Encoding, seed: int) -> Iterator[Part]:
    """gpt-oss: all experts in one tensor, gate and up rows interleaved; plain types are stored transposed, MXFP4 is not."""
    count, hidden, inner = shape.num_experts, shape.hidden, shape.expert_size
    for name, rows, cols, std in zip(
        ("gate_up_proj", "down_proj"), (2 * inner, hidden), (hidden, inner), expert_stds(shape), strict=True
    ):
        if isinstance(encoding, Mxfp4):
            blocks = TensorSpec(f"{base}.{name}_blocks", "U8", (count, rows, cols // 32, 16))
            scales = TensorSpec(f"{base}.{name}_scales", "U8", (count, rows, cols // 32))
            yield blocks, _draw_bytes(blocks, seed)
            yield scales, _draw_e8m0(scales, std, seed)
        elif isinstance(encoding, Plain):
            yield draw_plain(TensorSpec(f"{base}.{name}", encoding.dense_dtype, (count, cols, rows)), std, seed)
        else:
            raise ValueError("gpt-oss is published in MXFP4 and plain types, not in this format")
        yield draw_plain(TensorSpec(f"{base}.{name}_bias", encoding.dense_dtype, (count, rows)), SCALES.bias, seed)


def draw_plain(spec: TensorSpec, std: float, seed: int) -> Part:
    return spec, lambda: draw_floats(generator(seed, spec.name), math.prod(spec.shape), std, spec.dtype)


def _norm(name: str, dtype: str, width: int, seed: int) -> Part:
    spec = TensorSpec(name, dtype, (width,))
    return spec, lambda: encode_floats(generator(seed, name).normal(1.0, 0.05, width).astype(np.float32), dtype)


def _draw_bytes(spec: TensorSpec, seed: int) -> Callable[[], Array]:
    return lambda: raw_bytes(generator(seed, spec.name), spec.num_bytes)


def _draw_e8m0(spec: TensorSpec, std: float, seed: int) -> Callable[[], Array]:
    return lambda: draw_e8m0(generator(seed, spec.name), spec.num_bytes, std)


def draw_embedding(spec: TensorSpec, routing: Routing, seed: int) -> Callable[[], Array]:
    rows, width = spec.shape
    if routing == "uniform":
        return draw_plain(spec, SCALES.embedding, seed)[1]

    def draw() -> Array:
        rng = generator(seed, spec.name)
        shared = rng.standard_normal((1 + TOPICS, width), dtype=np.float32) * SCALES.embedding
        common, topics = shared[0] * math.sqrt(SCALES.common), shared[1:] * math.sqrt(SCALES.topic)
        own = SCALES.embedding * math.sqrt(1 - SCALES.common - SCALES.topic)
        out = []
        for first in range(0, rows, _ROWS_AT_ONCE):
            ids = np.arange(first, min(rows, first + _ROWS_AT_ONCE))
            values = draw_floats(rng, len(ids) * width, own, "F32").view(np.float32).reshape(-1, width)
            out.append(encode_floats(values + common + topics[ids * TOPICS // rows], spec.dtype))
        return np.concatenate(out)

    return draw
