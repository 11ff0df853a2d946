"""Loads the weights that every token needs into RAM, as published. The experts are not its business."""

import math
from collections.abc import Callable, Iterable

import torch

from engine.checkpoint.experts import Run
from engine.checkpoint.safetensors import TensorRef
from engine.errors import EngineError
from engine.tiers.arena import BLOCK, align_up, aligned_memory
from engine.tiers.disk import DiskReader

TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def load_dense(reader: DiskReader, refs: Iterable[TensorRef], progress: Callable[[int, int], None]) -> dict[str, torch.Tensor]:
    """Read tensors into one block of memory; `progress(done_bytes, total_bytes)` after each. Raises `EngineError`."""
    refs = sorted(refs, key=lambda ref: (ref.file, ref.offset))
    total = sum(ref.nbytes for ref in refs)
    memory = aligned_memory(sum(align_up(ref.nbytes) + BLOCK for ref in refs))
    pool = torch.frombuffer(memory, dtype=torch.uint8)
    tensors, base, done = {}, 0, 0
    for ref in refs:
        reader.read([Run(ref.file, ref.offset, ref.nbytes)], [0], memory[base:])
        start = base + ref.offset % BLOCK
        tensors[ref.name] = view_bytes(pool, start, ref.dtype, ref.shape)
        base += align_up(ref.nbytes) + BLOCK
        done += ref.nbytes
        progress(done, total)
    return tensors


def view_bytes(memory: torch.Tensor, start: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Bytes of uint8 `memory` from `start` as a tensor; a copy only where the file placed them off their alignment."""
    kind = TORCH_DTYPES.get(dtype)
    if kind is None:
        raise EngineError(
            "checkpoint.dtype", f"Weights of type {dtype} are not supported yet.", "Get the BF16, F16 or F32 release."
        )
    raw = memory[start : start + math.prod(shape) * kind.itemsize]
    if (memory.storage_offset() + start) % kind.itemsize:
        raw = raw.clone()
    return raw.view(kind).view(shape)
