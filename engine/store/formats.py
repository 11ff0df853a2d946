"""What people call the format of a model's weights, from types and config.json. Names only: at load `engine.quant` decides."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from engine.checkpoint.index import Checkpoint

_PACKED = ("U8", "I8", "I32", "F4")  # types that hold several weights in one number
_BY_METHOD = {"mxfp4": "MXFP4", "fp8": "FP8", "fbgemm_fp8": "FP8", "gptq": "GPTQ", "awq": "AWQ"}
_INSIDE = ("nvfp4", "mxfp4", "fp8", "float8", "int4", "w4a16", "pack-quantized")  # of descriptions, the first that is found
_SPELLED = {"float8": "FP8", "w4a16": "INT4", "pack-quantized": "INT4"}
_SEVERAL = ("compressed-tensors", "modelopt", "quark")  # methods that have several formats


def format_name(bytes_by_type: Mapping[str, int], config: Mapping[str, Any]) -> str:
    """'BF16', 'FP8', 'MXFP4'; the type that holds most bytes where config.json tells no more."""
    if config.get("expert_dtype") == "fp4":  # DeepSeek-V4, whose experts are most of it; `quantization_config` is of the rest
        return "MXFP4"
    dtype = max(bytes_by_type, key=lambda name: bytes_by_type[name], default="")
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and (named := _named(quantization)):
        return named
    return {"F8_E4M3": "FP8"}.get(dtype, "4-bit" if dtype in _PACKED else dtype)


def unread_method(config: Mapping[str, Any]) -> str:
    """The name of a quantisation that the engine does not read; empty where it may."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict) or _named(quantization):
        return ""
    method = str(quantization.get("quant_method") or "").lower()
    return "" if method in _SEVERAL else (method or "unknown")


def format_of(checkpoint: Checkpoint) -> str:
    count: Counter[str] = Counter()
    for ref in checkpoint.tensors.values():
        count[ref.dtype] += ref.nbytes
    return format_name(count, checkpoint.config)


def _named(quantization: Mapping[str, Any]) -> str:
    method = str(quantization.get("quant_method") or "").lower()
    if method in _BY_METHOD:
        return _BY_METHOD[method]
    if method not in _SEVERAL:
        return ""
    described = str(
        {name: quantization.get(name) for name in ("format", "quant_algo", "weight", "global_quant_config")}
    ).lower()
    found = next((word for word in _INSIDE if word in described), "")
    return _SPELLED.get(found, found.upper())
