"""What was read of models, kept for a while: a plan for another wish then costs arithmetic alone. Knows no wire and no plan."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path

from engine.judge import Facts

_SECONDS = 600.0  # a repository may be changed by its makers, and a download looks again anyway
_MOST = 64


class Shelf:
    """For any number of threads: of two that ask for the same model at once, one reads and the other waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[Hashable, float, Facts]] = OrderedDict()
        self._reading: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def find(self, key: Hashable, stamp: Hashable, read: Callable[[], Facts]) -> Facts:
        """What `read` gave for this key and stamp, or gives now. Raises as `read` does; a failure is not kept, and neither is
        what was not read from the model itself."""
        with self._lock:
            reading = self._reading.setdefault(key, threading.Lock())
        with reading:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == stamp and self._clock() - kept[1] < _SECONDS:
                return kept[2]
            facts = read()
            if not facts.caution:
                self._keep(key, (stamp, self._clock(), facts))
            return facts

    def _keep(self, key: Hashable, entry: tuple[Hashable, float, Facts]) -> None:
        with self._lock:
            self._kept[key] = entry
            self._kept.move_to_end(key)
            while len(self._kept) > _MOST:
                self._reading.pop(self._kept.popitem(last=False)[0], None)


def stamp_of(name: str) -> Hashable:
    """Of a folder: which files it has, their sizes and times; of a repository nothing."""
    folder = Path(name)
    if not folder.is_absolute():
        return None
    try:
        return tuple(sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in folder.iterdir()))
    except OSError:
        return None
