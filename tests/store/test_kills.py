"""`kill -9` at random moments: each restart goes on from what was flushed, and next to nothing is brought twice."""

import hashlib
import json
import sys
import time
from pathlib import Path
from random import Random

import pytest

from engine.store.ranges import Ranges
from tests.hub import faults, process
from tests.hub.server import FakeHub

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
REPO, FILE = "maker/Large", "model.safetensors"
_8_MB = 8_000_000


def logged(home: Path) -> Ranges:
    """What the part's log says is there, read without the code under test; empty before there is one."""
    ranges = Ranges()
    for log in home.rglob("*.part.log"):
        for line in log.read_text().splitlines():
            if line.startswith("[") and line.endswith("]"):
                ranges.add(*json.loads(line))
    return ranges


def kill_again_and_again(hub: FakeHub, home: Path, size: int, moments: list[int]) -> None:
    """Kill whenever so many bytes have been flushed, then let it end. Asserts what must hold after each."""
    for moment in moments:
        before = len(hub.requests_for(FILE))
        flushed = logged(home).end_of(0)
        running = process.start(hub, home, "pull", REPO)
        deadline = time.monotonic() + 120
        while logged(home).nbytes < moment:
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        running.kill()
        running.communicate()
        parts = [path for path in home.rglob("*.part") if path.stat().st_size > 0]
        assert len(parts) == 1
        begun = min((_first(seen.headers["Range"]) for seen in hub.requests_for(FILE)[before:]), default=flushed)
        assert begun >= flushed - _8_MB
    code, out, err = process.run(hub, home, "pull", REPO, "--json")
    assert code == 0, err
    folder = Path(json.loads(out)["path"])
    with (folder / FILE).open("rb") as stream:
        assert hashlib.file_digest(stream, "sha256").hexdigest() == hub.repos[REPO].sha256[FILE]
    assert (folder / FILE).stat().st_size == size
    assert not list(home.rglob("*.part*"))
    extra = hub.sent_bytes - size
    print(f"{len(moments)} kills: {extra} bytes more than the file's {size}, {extra / size:.2%}")


def _first(header: str) -> int:
    return int(header.removeprefix("bytes=").partition("-")[0])


def large_file(path: Path, size: int, seed: int) -> str:
    """Made in pieces that all differ; its sha256."""
    digest, random = hashlib.sha256(), Random(seed)
    block = bytearray(random.randbytes(16 << 20))
    with path.open("wb") as stream:
        for index in range(-(-size // len(block))):
            block[:8] = index.to_bytes(8, "little")
            piece = memoryview(block)[: size - index * len(block)]
            stream.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def serve(hub: FakeHub, path: Path, size: int) -> None:
    digest = large_file(path, size, 1)
    hub.add(REPO, {"config.json": b"{}", FILE: path}, sha256={FILE: digest})


def test_three_kills(hub: FakeHub, tmp_path: Path) -> None:
    size = 60_000_000
    serve(hub, tmp_path / FILE, size)
    hub.always(FILE, faults.Slow(40e6))
    kill_again_and_again(hub, tmp_path / "home", size, [5_000_000, 21_000_000, 44_000_000])
    assert hub.sent_bytes - size < 0.25 * size, "three times what the sockets hold, of a small file"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_gigabytes_killed_ten_times(hub: FakeHub, tmp_path: Path) -> None:
    size = 5_000_000_001
    serve(hub, tmp_path / FILE, size)
    moments = sorted(Random(6).randrange(50_000_000, size - 100_000_000) for _ in range(10))
    kill_again_and_again(hub, tmp_path / "home", size, moments)
    assert hub.sent_bytes - size < 0.02 * size
