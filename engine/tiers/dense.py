"""Loads the weights that every token needs, as published. The experts are not its business."""

import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch

from engine.checkpoint.experts import Run
from engine.checkpoint.safetensors import TensorRef
from engine.tiers.arena import BLOCK, align_up, aligned_memory
from engine.tiers.disk import DiskReader

_SPAN = 16 << 20  # bytes of one read: large enough for any drive's best rate
_GAP = 1 << 20  # bytes worth reading over rather than starting another read
_IN_FLIGHT = 4
_PART = 256 << 20  # bytes in RAM at once of what goes to a device
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


def load_placed(
    reader: DiskReader,
    refs: Sequence[TensorRef],
    beside: Sequence[TensorRef],
    device: torch.device,
    progress: Callable[[int, int], None],
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """As `load_dense`; the tensors of `refs` go to the device, a part of them in RAM at a time. Those `beside` stay in RAM."""
    if device.type == "cpu":
        tensors = load_dense(reader, [*refs, *beside], progress)
        return tensors, tensors
    total, done = sum(ref.nbytes for ref in (*refs, *beside)), 0

    def load(some: Sequence[TensorRef]) -> dict[str, torch.Tensor]:
        nonlocal done
        before, done = done, done + sum(ref.nbytes for ref in some)
        return load_dense(reader, some, lambda count, _: progress(before + count, total))

    placed: dict[str, torch.Tensor] = {}
    for part in _in_parts(refs):
        placed |= {name: tensor.to(device) for name, tensor in load(part).items()}
    return placed, load(beside)


def _in_parts(refs: Iterable[TensorRef]) -> Iterator[list[TensorRef]]:
    """Neighbours in the files, of about `_PART` bytes together."""
    part, nbytes = list[TensorRef](), 0
    for ref in sorted(refs, key=lambda ref: (ref.file, ref.offset)):
        part.append(ref)
        nbytes += ref.nbytes
        if nbytes >= _PART:
            yield part
            part, nbytes = [], 0
    if part:
        yield part


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
    """Each span into one of a few buffers and from there to the pool, in as many threads: touching new memory takes as long as
    reading it, and so happens beside it."""
    buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
    for _ in range(min(_IN_FLIGHT, len(spans))):
        buffers.put(aligned_memory(align_up(_SPAN) + BLOCK))

    def bring(span: _Span) -> int:
        buffer = buffers.get()
        try:
            reader.read([span.run], [0], buffer)
            data = torch.frombuffer(buffer, dtype=torch.uint8)[span.run.offset % BLOCK :]
            for source, target, count in span.copies:
                pool[target : target + count] = data[source : source + count]
        finally:
            buffers.put(buffer)
        return sum(count for _, _, count in span.copies)

    done, total = 0, sum(count for span in spans for _, _, count in span.copies)
    threads = ThreadPoolExecutor(_IN_FLIGHT, "dense")
    try:
        for ended in as_completed([threads.submit(bring, span) for span in spans]):
            done += ended.result()
            progress(done, total)
    finally:
        threads.shutdown(cancel_futures=True)
