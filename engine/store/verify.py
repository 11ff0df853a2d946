"""Compares a model that Stoker brought with its checksums once more."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.protocol import ModelState
from engine.store.hashing import file_matches
from engine.store.records import Record, Records
from engine.store.web import StoppedError


def verify(
    records: Records, record: Record, progress: Callable[[int, int], None], is_stopped: Callable[[], bool]
) -> tuple[str, ...]:
    """Paths of damaged or missing files, none of which is touched; downloading the model again brings those alone.

    Raises `StoppedError`.
    """
    done, total = 0, sum(file.size for file in record.files)
    damaged = []
    for file in record.files:
        if not _is_right(file.path, file.size, file.checksum, is_stopped):
            damaged.append(file.path)
            record = record.with_file(replace(file, mtime_ns=0))  # no longer taken as known to be right
        done += file.size
        progress(done, total)
    state = ModelState.DAMAGED if damaged else record.state if record.state is ModelState.UNVERIFIED else ModelState.WHOLE
    records.put(replace(record, state=state, verified_at=time.time()))
    return tuple(damaged)


def _is_right(path: str, size: int, checksum: str, is_stopped: Callable[[], bool]) -> bool:
    try:
        is_right = file_matches(Path(path), size, checksum, is_stopped)
    except OSError:
        is_right = False
    if is_stopped():
        raise StoppedError
    return is_right
