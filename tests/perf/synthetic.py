"""Makes a checkpoint with random weights and a published model's true shapes, names and encoding, cut to a layer count.

`make` streams: one tensor is in memory at a time, and the model appears under its name only when it is complete. Nothing here
reads a checkpoint or runs one; that routing is as claimed is measured by `tests.perf.routing` on a running engine.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from engine.checkpoint.write import write_safetensors
from tests.helpers.tiny import write_text_files
from tests.perf import layout, qwen3_5
from tests.perf.encode import ENCODINGS, Encoding, Part, Plain
from tests.perf.layout import SCALES, Routing
from tests.perf.shapes import Shape, config_of

Attention = Literal["plain", "encoded"]
_RECIPE = 3  # counts changes to what is drawn, so that a cache never serves another model under the same name


def make(
    folder: Path,
    shape: Shape,
    encoding: str,
    layers: int,
    seed: int = 0,
    routing: Routing = "uniform",
    attention: Attention = "plain",
) -> Path:
    """Write the checkpoint into `folder` and return it; one that was made from the same arguments is kept.

    `encoding` is a key of `ENCODINGS` and holds for the experts; `attention` says whether the attention projections and the head share it,
    as in files that quantise every large matrix, or stay plain. Raises ValueError for what no one publishes, KeyError for
    an unknown name, OSError from the drive.
    """
    shape, coded = shape.cut(layers), ENCODINGS[encoding]
    recipe = json.loads(json.dumps([_RECIPE, asdict(shape), asdict(SCALES), encoding, seed, routing, attention]))
    if _recipe_of(folder) == recipe:
        return folder
    on_attention: Encoding = coded if attention == "encoded" else Plain(coded.dense_dtype)
    if shape.model_type == "gpt_oss" and on_attention != Plain(coded.dense_dtype):
        raise ValueError("gpt-oss is published with plain attention only")
    named = qwen3_5 if shape.model_type == "qwen3_5_moe" else layout
    tensors = list(named.parts(shape, coded, on_attention, routing, seed))
    config: dict[str, Any] = config_of(shape) | {"torch_dtype": {"BF16": "bfloat16", "F16": "float16"}.get(coded.dense_dtype)}
    ignore = named.not_quantised(shape, attention=attention == "encoded")
    if quantization := _quantization(shape, encoding, ignore):
        config["quantization_config"] = quantization
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _write_files(partial, config, tensors)
        (partial / "synthetic.json").write_text(json.dumps(recipe))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _recipe_of(folder: Path) -> Any:
    try:
        return json.loads((folder / "synthetic.json").read_text())
    except (OSError, ValueError):
        return None


def _quantization(shape: Shape, encoding: str, ignore: list[str]) -> dict[str, Any] | None:
    if shape.model_type == "gpt_oss" and encoding == "mxfp4":
        skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
        return {"quant_method": "mxfp4", "modules_to_not_convert": skipped}
    return ENCODINGS[encoding].quantization(ignore)


def _write_files(folder: Path, config: dict[str, Any], tensors: list[Part]) -> None:
    write_text_files(folder)  # 259 tokens, fewer than any vocabulary here
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "bos_token_id": 1}))
    quantization = config.get("quantization_config", {})
    if quantization.get("quant_method") == "modelopt":
        listed = {
            "quant_algo": "NVFP4",
            "group_size": 16,
            "kv_cache_quant_algo": None,
            "exclude_modules": quantization["ignore"],
        }
        (folder / "hf_quant_config.json").write_text(json.dumps({"producer": quantization["producer"], "quantization": listed}))
    draws = {spec.name: draw for spec, draw in tensors}
    write_safetensors(
        folder / "model.safetensors",
        [spec for spec, _ in tensors],
        lambda name: draws[name]().reshape(-1).view(np.uint8).data,
    )
