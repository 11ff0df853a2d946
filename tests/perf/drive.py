"""What a drive gives to a plain loop of direct reads into 2 MiB pages, and its readahead. Linux."""

import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

_SECONDS, _ATTEMPTS = 0.5, 2  # for each number of threads; drives change their rate from one second to the next
_BLOCK, _HUGE = 4096, 2 << 20


def best_read_gbps(file: Path, nbytes: int) -> float:
    """Reads of `nbytes` at random places with 1, 2 and 4 threads; the best of all attempts."""
    return max(_gbps(file, -(-nbytes // _BLOCK) * _BLOCK, threads) for threads in (1, 2, 4) * _ATTEMPTS)


def _gbps(file: Path, nbytes: int, threads: int) -> float:
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    places = (os.fstat(descriptor).st_size - nbytes) // _BLOCK
    buffers = [_huge_pages(16 * nbytes) for _ in range(threads)]
    moved, begun = [0] * threads, time.perf_counter()

    def read(number: int) -> None:
        draw, count = random.Random(f"{number} {begun}"), 0
        while time.perf_counter() - begun < _SECONDS:
            start = count % 16 * nbytes
            moved[number] += os.preadv(descriptor, [buffers[number][start : start + nbytes]], draw.randrange(places) * _BLOCK)
            count += 1

    workers = [threading.Thread(target=read, args=(number,)) for number in range(threads)]
    begun = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    elapsed = time.perf_counter() - begun
    os.close(descriptor)
    return sum(moved) / elapsed / 1e9


def fresh_read_gbps(file: Path, nbytes: int, total: int) -> float:
    """Reads of `nbytes` one after the other into `total` bytes of memory that nothing has touched yet, by four threads."""
    nbytes = -(-nbytes // _BLOCK) * _BLOCK
    descriptor, memory = os.open(file, os.O_RDONLY | os.O_DIRECT), _huge_pages(total, is_touched=False)
    starts = range(0, min(total, os.fstat(descriptor).st_size) - nbytes, nbytes)

    def read(start: int) -> int:
        return os.preadv(descriptor, [memory[start : start + nbytes]], start)

    begun = time.perf_counter()
    with ThreadPoolExecutor(4) as threads:
        moved = sum(threads.map(read, starts))
    elapsed = time.perf_counter() - begun
    os.close(descriptor)
    return moved / elapsed / 1e9


def touch(nbytes: int) -> None:
    """So much memory, by two threads; all of it is free again afterwards."""
    memory = _huge_pages(nbytes, is_touched=False)
    halves = (memory[: nbytes // 2], memory[nbytes // 2 :])
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda half: torch.frombuffer(half, dtype=torch.uint8).zero_(), halves))


def _huge_pages(nbytes: int, *, is_touched: bool = True) -> memoryview:
    memory = mmap.mmap(-1, -(-nbytes // _HUGE) * _HUGE + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    if is_touched:
        for offset in range(0, len(memory), _BLOCK):
            memory[offset] = 1  # faulted in before the clock runs
    return memoryview(memory)[:nbytes]


def drop_cached(file: Path) -> None:
    """Pages that another process read first would count as its memory, and not against a cgroup's limit."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@contextmanager
def readahead(file: Path, kib: int) -> Iterator[bool]:
    """Sets the readahead of the drive under `file` and puts it back; False where that is not allowed."""
    device = os.stat(file).st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    try:
        before = setting.read_text()
        setting.write_text(str(kib))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        setting.write_text(before)
