"""How long to wait, how often to try again and how fast to go."""

import random
import threading
import time
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """`retries` counts failures in a row without a byte between them."""

    stall_seconds: float = 30.0
    retries: int = 8
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0

    def wait_seconds(self, failures: int) -> float:
        """Doubling, and drawn between the half and the whole, so that a thousand clients do not come back at once."""
        return random.uniform(0.5, 1.0) * min(self.longest_wait_seconds, self.first_wait_seconds * 2.0 ** (failures - 1))


class Throttle:
    """Bytes per second for all connections together; 0 is no limit. May be changed at any time from any thread."""

    def __init__(self, bytes_per_second: int = 0) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes_per_second = bytes_per_second

    def delay(self, nbytes: int) -> float:
        """Seconds to wait after `nbytes` have come."""
        limit = self.bytes_per_second
        if limit <= 0:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now - 0.1) + nbytes / limit
            return max(0.0, self._free_at - now)

    def step(self, nbytes: int) -> int:
        """How much to read at once so that the rate is kept over a tenth of a second."""
        return nbytes if self.bytes_per_second <= 0 else max(1024, min(nbytes, self.bytes_per_second // 10))


class Rate:
    """Bytes per second over the last seconds; `None` until three samples over a second, and while nothing comes."""

    _SPAN_SECONDS = 5.0
    _FROZEN_SECONDS = 3.0

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._grew_at = 0.0

    def add(self, now: float, total_bytes: int) -> None:
        if not self._samples or total_bytes != self._samples[-1][1]:
            self._grew_at = now
        if self._samples and total_bytes < self._samples[-1][1]:
            self._samples.clear()  # a file began anew
        self._samples.append((now, total_bytes))
        while now - self._samples[0][0] > self._SPAN_SECONDS:
            self._samples.popleft()

    def bytes_per_second(self, now: float) -> float | None:
        if len(self._samples) < 3 or now - self._grew_at > self._FROZEN_SECONDS:
            return None
        (begun, before), (ended, after) = self._samples[0], self._samples[-1]
        return (after - before) / (ended - begun) if ended - begun >= 1.0 and after > before else None
