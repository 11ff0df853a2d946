"""Threads that give way: while an answer is written, a download takes what is left of the processor."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import wraps

_NICE = 19  # of Linux, where it is a thread's own: a seventieth of an ordinary thread's share, which is 20 MB/s
_BELOW_NORMAL = -1  # THREAD_PRIORITY_BELOW_NORMAL of Windows


def modest(work: Callable[[], None]) -> Callable[[], None]:
    """The same work for a thread of its own, which steps back first where the system lets one thread do so."""

    @wraps(work)
    def stepped_back() -> None:
        _step_back()
        work()

    return stepped_back


def _step_back() -> None:
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    elif sys.platform == "win32":
        import ctypes

        kernel = ctypes.windll.kernel32
        kernel.SetThreadPriority(kernel.GetCurrentThread(), _BELOW_NORMAL)
