"""A download's threads give way, and nobody else does."""

import os
import sys
import threading

import pytest

from engine.store.modest import modest


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a thread's priority")
def test_only_the_thread_steps_back() -> None:
    found: list[int] = []

    def own_priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = own_priority()
    thread = threading.Thread(target=modest(lambda: found.append(own_priority())))
    thread.start()
    thread.join()
    assert found == [19]
    assert own_priority() == before
