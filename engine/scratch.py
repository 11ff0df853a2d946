"""A small made-up model on a drive where no model is yet: to measure with, and gone afterwards."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.bench_pieces import Stopped
from engine.checkpoint.write import TensorSpec, write_safetensors
from engine.errors import EngineError
from engine.models.registry import find
from engine.rehearsal import drawn_memory
from engine.store.target import existing_parent, free_bytes
from engine.units import format_bytes

_CONFIG = {  # layers of Qwen3-30B-A3B with fewer experts
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_hidden_layers": 3, "num_experts": 24, "num_experts_per_tok": 8,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 16384, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 16384, "rope_theta": 1e6, "tie_word_embeddings": True, "norm_topk_prob": True,
    "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [], "torch_dtype": "bfloat16",
}  # fmt: skip
_LEFT_BYTES = 2 << 30  # what stays free on the drive beside it
_PREFIX = "stoker-measure-"


@contextmanager
def scratch_model(folder: Path, should_stop: Callable[[], bool]) -> Iterator[Path]:
    """Its folder, on the drive of `folder`. Raises `EngineError` where the drive cannot take it, and `Stopped`."""
    tensors, parent = _tensors(), existing_parent(folder)
    needed, free = sum(spec.num_bytes for spec in tensors), free_bytes(parent)
    if free < needed + _LEFT_BYTES:
        text = (
            f"No model is on the drive of {folder} yet, and with {format_bytes(free)} free it has no room for a file of "
            f"{format_bytes(needed)} to measure with."
        )
        raise EngineError("bench.no_space", text, "Free some space, or choose a folder on another drive.")
    for old in parent.glob(f"{_PREFIX}*"):  # of a measurement that was killed
        shutil.rmtree(old, ignore_errors=True)
    try:
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        text = f"Nothing can be written in {parent} to measure with: {error.strerror or error}."
        raise EngineError("bench.read_only", text, "Choose a folder on another drive.") from error
    try:
        _write(place, tensors, should_stop)
        yield place
    except OSError as error:
        text = f"The file to measure with could not be written: {error.strerror or error}."
        raise EngineError("bench.scratch", text, "Check the drive.") from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _tensors() -> list[TensorSpec]:
    architecture = find(_CONFIG, "scratch")
    module = architecture.load()
    shapes = module.weight_shapes(module.Config.read(_CONFIG, "scratch"))
    names = (name if name.endswith(".weight") else f"{name}.weight" for name in shapes)  # matrices come by their stems
    dense = [TensorSpec(name, "BF16", tuple(shape)) for name, shape in zip(names, shapes.values(), strict=True)]
    hidden, inner = _CONFIG["hidden_size"], _CONFIG["moe_intermediate_size"]
    assert isinstance(hidden, int), "a count"
    assert isinstance(inner, int), "a count"
    experts = [
        TensorSpec(f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight", "BF16", shape)
        for layer in range(int(str(_CONFIG["num_hidden_layers"])))
        for expert in range(int(str(_CONFIG["num_experts"])))
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner)))
    ]
    return [*dense, *experts]


def _write(folder: Path, tensors: list[TensorSpec], should_stop: Callable[[], bool]) -> None:
    memory = drawn_memory(max(spec.num_bytes for spec in tensors))
    sizes = {spec.name: spec.num_bytes for spec in tensors}
    step = 0

    def produce(name: str) -> memoryview:
        nonlocal step
        if should_stop():
            raise Stopped
        step += 1
        memory[::4096] = step % 64  # no two alike: a drive that compresses or shares would look faster than it is
        return memoryview(bytearray(memory[: sizes[name]].numpy().tobytes()))

    (folder / "config.json").write_text(json.dumps(_CONFIG))
    write_safetensors(folder / "model.safetensors", tensors, produce)
