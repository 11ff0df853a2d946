"""What a model keeps of the tokens read, from config.json alone, for a verdict before the download. No tensor library."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from engine.plan.footprint import Choice, Compressed

_RECURRENT = ("linear_attention", "conv", "mamba")
_SLIDING = "sliding_attention"
_ALL_SLIDE = ("mixtral", "phimoe")  # where nothing switches it off
_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}  # tokens of an entry, as published
_COPIES = 6  # of a state: as it is, as it becomes, and four to go back to
_FLOAT = 4
MOST_LAYERS = 1000  # no published model comes near; lists of so many are made before anything else is checked
MOST = 2**31  # of any count in config.json
_BLOCK = 32  # numbers, of which a compressed row has whole ones where an index's follow


@dataclass(frozen=True, slots=True)
class Cache:
    """`heads` and `head_dim` are 0 where the usual keys tell."""

    layers: int
    heads: int = 0
    head_dim: int = 0
    state_bytes: int = 0
    windows: tuple[tuple[int, int], ...] = ()  # (tokens, layers) of those that see only so many
    choice: Choice | None = None  # of layers that do not read all that they keep
    compressed: tuple[tuple[Compressed, int], ...] = ()  # with the layers that keep it


def cache_of(config: Mapping[str, Any]) -> Cache:
    """Of a text model's configuration, which may still be wrong: whatever cannot be read counts as absent."""

    def number(key: str, default: int = 0) -> int:
        value = config.get(key)
        return value if _is_count(value) else default

    if config.get("model_type") == "deepseek_v4":
        return _compressed(config, number)
    if rank := number("kv_lora_rank"):
        layers, row, index = number("num_hidden_layers"), rank + number("qk_rope_head_dim"), number("index_head_dim", 128)
        if not (most := number("index_topk")):
            return Cache(layers, 1, row // 2)
        choice = Choice(most, row, sum(indexed_layers(config, layers)), number("index_n_heads"), index)
        return Cache(layers, 1, (-(-row // _BLOCK) * _BLOCK + index) // 2, choice=choice)
    kinds, count = config.get("layer_types") or config.get("layers_block_type"), number("num_hidden_layers")
    is_mamba = "mamba_n_heads" in config
    if not isinstance(kinds, list) and is_mamba:
        kinds = ["mamba"] * count
    elif not isinstance(kinds, list):
        interval = number("full_attention_interval", 4)
        is_delta = "linear_num_value_heads" in config
        kinds = ["linear_attention" if is_delta and (layer + 1) % interval else "full_attention" for layer in range(count)]
    recurrent = sum(kind in _RECURRENT for kind in kinds[:count])
    if not recurrent:
        return Cache(count, windows=_windows(config, kinds[:count]))
    if "conv_L_cache" in config:
        state = (number("conv_L_cache", 3) - 1) * number("hidden_size")
    elif is_mamba:
        inner, written = number("mamba_expand", 2) * number("hidden_size"), number("mamba_d_state", 256)
        taps = number("mamba_d_conv", 4) - 1
        state = inner * written + taps * (inner + 2 * number("mamba_n_groups", 1) * written)
    else:
        values, keys = number("linear_num_value_heads", 32), number("linear_num_key_heads", 16)
        key_dim, value_dim = number("linear_key_head_dim", 128), number("linear_value_head_dim", 128)
        taps = number("linear_conv_kernel_dim", 4) - 1
        state = values * key_dim * value_dim + taps * (2 * keys * key_dim + values * value_dim)
    return Cache(layers=count - recurrent, state_bytes=_COPIES * recurrent * state * _FLOAT)


def indexed_layers(config: Mapping[str, Any], layers: int) -> list[bool]:
    """Whether each has an index of its own, of those that may also read what an earlier one has chosen: by a word for each, by
    letters, or by a step after some first ones. Whatever else stands there counts as having one."""
    kinds = config.get("indexer_types") or config.get("index_topk_pattern")
    if isinstance(kinds, str | list):
        return [str(kind)[:1].lower() != "s" for kind in kinds[:layers]]
    step, offset = config.get("index_topk_freq") or 1, config.get("index_skip_topk_offset", 2)
    if type(step) is not int or type(offset) is not int:
        return [True] * layers
    return [max(layer - offset + 1, 0) % max(step, 1) == 0 for layer in range(layers)]


def _compressed(config: Mapping[str, Any], number: Callable[[str, int], int]) -> Cache:
    """DeepSeek-V4: every layer has a window, most of them compressed entries of all tokens and means in the making."""
    count, dim, found = number("num_hidden_layers", 0), number("head_dim", 512), config.get("compress_rates")
    rates = _RATES | {kind: rate for kind, rate in (found if isinstance(found, dict) else {}).items() if _is_count(rate)}
    kinds, ratios = config.get("layer_types"), config.get("compress_ratios")
    if isinstance(ratios, list):
        kinds = [next((kind for kind, usual in _RATES.items() if usual == ratio), _SLIDING) for ratio in ratios]
    kinds = kinds[:count] if isinstance(kinds, list) else []
    sparse, heavy = _RATES
    every = (
        (Compressed(rates[sparse], (dim, number("index_head_dim", 128)), number("index_topk", 512)), kinds.count(sparse)),
        (Compressed(rates[heavy], (dim,)), kinds.count(heavy)),
    )
    state = sum(3 * sum(kept.widths) * len(kept.widths) * layers for kept, layers in every)
    compressed = tuple(sorted((kept, layers) for kept, layers in every if layers))
    return Cache(count, 1, dim // 2, _COPIES * state * _FLOAT, ((number("sliding_window", 128), count),), compressed=compressed)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value <= MOST


def _windows(config: Mapping[str, Any], kinds: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Where layers differ their kinds tell which have a window; where they do not, all have it or none."""
    window, layers = config.get("sliding_window"), kinds.count(_SLIDING)
    is_whole = config.get("use_sliding_window", config.get("model_type") in _ALL_SLIDE)
    layers = layers or (len(kinds) if is_whole is True else 0)
    return ((window, layers),) if layers and _is_count(window) else ()
