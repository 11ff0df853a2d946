"""The fake keeps the promises that the tests of the window rely on, and those of the real host."""

import subprocess
import sys
import time

from engine.protocol import (
    ChatMessage,
    Finished,
    Generate,
    Hello,
    ListModels,
    Load,
    Loaded,
    Message,
    Meter,
    Models,
    Sampling,
    Text,
    decode,
    encode,
)
from tests.app.conftest import FAKE_ENGINE


def test_every_line_is_a_message_and_batches_are_as_slow_as_promised() -> None:
    with subprocess.Popen(
        [sys.executable, str(FAKE_ENGINE), "normal", "--rate", "200", "--tokens", "200"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        for request in (ListModels(1), Load(2, "m"), Generate(3, (ChatMessage("user", "hi"),), Sampling(max_tokens=200))):
            child.stdin.write(encode(request) + "\n")
        child.stdin.flush()
        events: list[Message] = []
        begun = time.monotonic()
        while not events or not isinstance(events[-1], Finished):
            events.append(decode(child.stdout.readline()))
            if isinstance(events[-1], Loaded):
                begun = time.monotonic()
        seconds = time.monotonic() - begun
        child.stdin.close()
        assert child.wait(timeout=5) == 0
    assert isinstance(events[0], Hello)
    assert isinstance(events[1], Models)
    assert len([event for event in events if isinstance(event, Text)]) <= 30 * seconds + 2
    assert len([event for event in events if isinstance(event, Meter)]) <= 5 * seconds + 3
