"""Loads the weights that every token needs into RAM, as published. The experts are not its business."""

import queue
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.checkpoint.experts import Run
from engine.checkpoint.safetensors import TensorRef
from engine.tiers.arena import BLOCK, align_up, aligned_memory
from engine.tiers.disk import DiskReader

_SPAN = 16 << 20  # bytes of one read: large enough for any drive's best rate
_GAP = 1 << 20  # bytes worth reading over rather than starting another read
_IN_FLIGHT = 4
_ALIGNMENT = 64  # a cache line, so that any view of a tensor is aligned


@dataclass(slots=True)
class _Span:
    """A piece of a file, and where the parts of tensors in it go: (offset in the span, offset in the pool, bytes)."""

    run: Run
    copies: list[tuple[int, int, int]] = field(default_factory=list)


def load_dense(reader: DiskReader, refs: Iterable[TensorRef], progress: Callable[[int, int], None]) -> dict[str, torch.Tensor]:
    """Tensors by name as uint8 [bytes], in one block of memory; `progress(done_bytes, total_bytes)` as they arrive.

    Raises `EngineError` when memory is refused or a read fails.
    """
    refs = sorted(refs, key=lambda ref: (ref.file, ref.offset))
    places, size = {}, 0
    for ref in refs:
        places[ref.name] = size
        size += align_up(ref.nbytes, _ALIGNMENT)
    pool = torch.frombuffer(aligned_memory(max(size, 1)), dtype=torch.uint8)
    _read_spans(reader, _spans(refs, places), pool, progress)
    return {ref.name: pool[places[ref.name] : places[ref.name] + ref.nbytes] for ref in refs}


def _spans(refs: list[TensorRef], places: dict[str, int]) -> list[_Span]:
    """Reads of at most `_SPAN` bytes that cover all tensors in file order, joined over small gaps."""
    spans: list[_Span] = []
    for ref in refs:
        begin, end = ref.offset, ref.offset + ref.nbytes
        while begin < end:
            last = spans[-1] if spans else None
            if last is None or not _extends(last.run, ref, begin):
                last = _Span(Run(ref.file, begin, 0))
                spans.append(last)
            count = min(end, last.run.offset + _SPAN) - begin
            last.run = Run(ref.file, last.run.offset, begin + count - last.run.offset)
            last.copies.append((begin - last.run.offset, places[ref.name] + begin - ref.offset, count))
            begin += count
    return spans


def _extends(run: Run, ref: TensorRef, begin: int) -> bool:
    return run.file == ref.file and begin - (run.offset + run.nbytes) <= _GAP and begin < run.offset + _SPAN


def _read_spans(reader: DiskReader, spans: list[_Span], pool: torch.Tensor, progress: Callable[[int, int], None]) -> None:
    """Several reads in flight into buffers of their own, copied to the pool as they land."""
    buffers = [aligned_memory(align_up(_SPAN) + BLOCK) for _ in range(min(_IN_FLIGHT, len(spans)))]
    landed: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting, in_flight = iter(spans), 0
    done, total = 0, sum(count for span in spans for _, _, count in span.copies)

    def submit(buffer: memoryview) -> int:
        span = next(waiting, None)
        if span is not None:
            reader.submit([span.run], [0], buffer, (span, buffer), landed)
        return span is not None

    for buffer in buffers:
        in_flight += submit(buffer)
    failure: Exception | None = None
    while in_flight:
        (span, buffer), _, error = landed.get()
        in_flight -= 1
        failure = failure or error
        if failure is not None:
            continue
        data = torch.frombuffer(buffer, dtype=torch.uint8)[span.run.offset % BLOCK :]
        for source, target, count in span.copies:
            pool[target : target + count] = data[source : source + count]
            done += count
        progress(done, total)
        in_flight += submit(buffer)
    if failure is not None:
        raise failure
