"""The reader against files that change, end early or fail: right bytes or a named error, and never a lost slot."""

import errno
import fcntl
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoint.experts import Run
from engine.checkpoint.safetensors import TensorRef
from engine.config import Sampling, Wishes
from engine.engine import Engine
from engine.errors import EngineError
from engine.hardware.drive import Drive
from engine.hardware.machine import DriveKind
from engine.protocol import ChatMessage
from engine.tiers import dense
from engine.tiers.arena import BLOCK, RamArena, align_up, aligned_memory
from engine.tiers.disk import DiskReader
from tests.helpers.tiny import session_on, write_mixtral


@pytest.fixture
def reader() -> Any:
    reader = DiskReader()
    yield reader
    reader.close()


@pytest.mark.parametrize("offset", [0, 1, 511, 4095, 4096, 5000, 99_999])
@pytest.mark.parametrize("nbytes", [1, 4096, 10_001, 100_000])
def test_any_range_arrives_whole(reader: DiskReader, tmp_path: Path, offset: int, nbytes: int) -> None:
    file = tmp_path / "data"
    data = os.urandom(offset + nbytes + 3)
    file.write_bytes(data)
    target = aligned_memory(align_up(nbytes) + BLOCK)
    reader.read([Run(file, offset, nbytes)], [0], target)
    assert bytes(target[offset % BLOCK : offset % BLOCK + nbytes]) == data[offset : offset + nbytes]


def test_a_file_cut_while_open_is_named_with_its_offset(reader: DiskReader, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(bytes(100_000))
    target = aligned_memory(1 << 20)
    reader.read([Run(file, 50_000, 50_000)], [0], target)
    os.truncate(file, 60_000)
    with pytest.raises(EngineError, match=r"weights\.safetensors on .* failed at byte 50000: the file ends 40000 bytes early"):
        reader.read([Run(file, 50_000, 50_000)], [0], target)


def test_a_failed_read_is_tried_once_more(reader: DiskReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data"
    file.write_bytes(os.urandom(8192))
    genuine, calls = os.preadv, []

    def flaky(*arguments: Any) -> int:
        calls.append(arguments)
        if len(calls) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return genuine(*arguments)

    monkeypatch.setattr(os, "preadv", flaky)
    target = aligned_memory(1 << 16)
    reader.read([Run(file, 0, 8192)], [0], target)
    assert bytes(target[:8192]) == file.read_bytes()


def test_parallel_reads_do_not_mix(reader: DiskReader, tmp_path: Path) -> None:
    file = tmp_path / "data"
    data = os.urandom(64 * 5000)
    file.write_bytes(data)
    memory = aligned_memory(64 * (8192 + BLOCK))
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for index in range(64):
        reader.submit([Run(file, index * 5000, 5000)], [0], memory[index * 12288 : (index + 1) * 12288], index, done)
    for _ in range(64):
        index, nbytes, error = done.get()
        assert (nbytes, error) == (5000, None)
        start = index * 12288 + index * 5000 % BLOCK
        assert bytes(memory[start : start + 5000]) == data[index * 5000 : (index + 1) * 5000]
    assert reader.take_busy_seconds() > 0
    assert reader.take_busy_seconds() == 0


def test_refused_direct_io_falls_back_with_a_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.open

    def refuse(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return genuine(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    (tmp_path / "data").write_bytes(b"abc" * 3000)
    reader, target = DiskReader(), aligned_memory(1 << 16)
    reader.read([Run(tmp_path / "data", 5, 8000)], [0], target)
    reader.close()
    assert bytes(target[5:8005]) == (b"abc" * 3000)[5:8005]
    assert "file cache" in reader.notice


def test_a_direct_read_that_is_refused_is_repeated_buffered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = os.preadv

    def refuse_direct(descriptor: int, *rest: Any) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return genuine(descriptor, *rest)

    monkeypatch.setattr(os, "preadv", refuse_direct)
    (tmp_path / "data").write_bytes(b"abc" * 3000)
    reader, target = DiskReader(), aligned_memory(1 << 16)
    reader.read([Run(tmp_path / "data", 5, 8000)], [0], target)
    reader.close()
    assert bytes(target[5:8005]) == (b"abc" * 3000)[5:8005]
    assert "file cache" in reader.notice


@pytest.mark.parametrize("slots", [2, 8])
def test_a_disk_that_fails_in_an_answer_leaves_a_usable_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    folder = write_mixtral(tmp_path / "model")
    prompt = list(range(3, 43))
    with session_on(folder, slots) as (session, _):
        expected, _ = session.sync(prompt)
    with session_on(folder, slots) as (session, _):
        genuine = os.preadv
        monkeypatch.setattr(os, "preadv", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(EngineError, match="Input/output error"):
            session.sync(prompt)
        assert session.tokens == []
        monkeypatch.setattr(os, "preadv", genuine)
        logits, _ = session.sync(prompt)
        torch.testing.assert_close(logits, expected, atol=0, rtol=0)


def test_failures_that_come_late_do_not_meet_the_next_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first read to fail ends the pass, while others are still failing slowly."""
    folder, prompt = write_mixtral(tmp_path / "model"), list(range(3, 43))
    genuine = os.preadv
    is_first = threading.Lock()

    def fail(*_: Any) -> int:
        if not is_first.acquire(blocking=False):
            time.sleep(0.05)
        raise OSError(errno.EIO, "Input/output error")

    with session_on(folder, 8) as (session, _):
        monkeypatch.setattr(os, "preadv", fail)
        with pytest.raises(EngineError):
            session.sync(prompt)
        monkeypatch.setattr(os, "preadv", genuine)
        session.sync(prompt)


def test_arena_slots_are_apart_and_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.tiers.arena._CHUNK", 5 * BLOCK)  # several chunks without taking gigabytes
    arena = RamArena(2 * BLOCK, 7)
    for slot in range(7):
        assert arena.tensor(slot).data_ptr() % BLOCK == 0
        arena.memory(slot)[:] = bytes([slot + 1]) * (2 * BLOCK)
    assert [set(arena.tensor(slot).tolist()) for slot in range(7)] == [{slot + 1} for slot in range(7)]


def test_refused_memory_is_one_sentence() -> None:
    with pytest.raises(EngineError, match="refused"):
        aligned_memory(1 << 60)


def _answer(folder: Path, slots: int, harm: Any, mend: Any, match: str) -> None:
    """A prompt, harm in the middle of its answer, one clear error; mended, the same session goes on as if nothing had been."""
    prompt = list(range(3, 43))
    with session_on(folder, slots) as (session, _):
        session.sync(prompt)
        expected = [session.step(token)[0] for token in range(50, 60)]
    with session_on(folder, slots) as (session, _):
        session.sync(prompt)
        session.step(50)
        harm()
        with pytest.raises(EngineError, match=match) as caught:
            session.sync([*prompt, *range(50, 60)])
        assert caught.value.hint
        mend()
        session.sync([*prompt, 50])
        for token, logits in zip(range(51, 60), expected[1:], strict=True):
            torch.testing.assert_close(session.step(token)[0], logits, atol=1e-5, rtol=1e-5)


def test_a_file_that_is_away_for_a_while(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    file, away = folder / "model.safetensors", folder / "away"
    _answer(
        folder,
        3,
        lambda: file.rename(away),
        lambda: away.rename(file),
        r"model\.safetensors cannot be reached on the drive .*No such",
    )


@pytest.mark.parametrize("kind", [DriveKind.USB, DriveKind.NETWORK])
def test_a_drive_whose_files_may_no_longer_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: DriveKind) -> None:
    """It drops out, comes back with other rights, and is named."""
    folder = write_mixtral(tmp_path / "model")
    drive = Drive("/dev/sdz1", "/media/stick", "exfat", kind)
    monkeypatch.setattr("engine.tiers.disk.drive_of", lambda _: drive)
    read, opened = os.preadv, os.open

    def lost(*_: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    def refused(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if str(path).endswith(".safetensors"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, mode, **more)

    def harm() -> None:
        monkeypatch.setattr(os, "preadv", lost)
        monkeypatch.setattr(os, "open", refused)

    def mend() -> None:
        monkeypatch.setattr(os, "preadv", read)
        monkeypatch.setattr(os, "open", opened)

    _answer(folder, 2, harm, mend, r"/dev/sdz1 \(/media/stick\).*Permission denied")


def test_a_full_disk_keeps_nothing_and_ends_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, data = write_mixtral(tmp_path / "model"), tmp_path / "data"
    data.mkdir()
    messages = [ChatMessage("user", "hello")]
    sampling = Sampling(temperature=0.0, max_tokens=8)
    engine = Engine(folder, Wishes(), data=data)
    try:
        expected = [token.id for token in engine.generate(engine.encode(messages), sampling)]
        kept = {file: file.read_bytes() for file in data.rglob("*") if file.is_file()}
        genuine = Path.write_text

        def full(file: Path, text: str, *rest: Any, **more: Any) -> int:
            genuine(file, text[: len(text) // 2], *rest, **more)
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_text", full)
        assert [token.id for token in engine.generate(engine.encode(messages), sampling)] == expected
        assert {file: file.read_bytes() for file in data.rglob("*") if file.is_file()} == kept
    finally:
        engine.close()


def test_a_file_that_is_replaced_while_open(tmp_path: Path) -> None:
    """By another of the same size: what a new download of the same model would do."""
    folder = write_mixtral(tmp_path / "model")
    file, old = folder / "model.safetensors", folder / "old"

    def replace_file() -> None:
        file.rename(old)
        file.write_bytes(bytes(old.stat().st_size))

    _answer(folder, 3, replace_file, lambda: old.replace(file), r"model\.safetensors on the drive .* has changed since")


def test_a_file_that_is_written_to_while_open(tmp_path: Path) -> None:
    folder = write_mixtral(tmp_path / "model")
    file = folder / "model.safetensors"
    before = file.stat()

    def write() -> None:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    _answer(folder, 3, write, lambda: os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns)), "has changed since")


def test_a_drive_that_comes_back_is_opened_again(reader: DiskReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors of a drive that was unplugged stay dead when it is back."""
    file = tmp_path / "weights"
    file.write_bytes(os.urandom(8192))
    target, dead = aligned_memory(1 << 16), set[int]()
    reader.read([Run(file, 0, 8192)], [0], target)
    genuine = os.preadv

    def unplugged(descriptor: int, *rest: Any) -> int:
        dead.add(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "preadv", unplugged)
    with pytest.raises(EngineError, match=r"Reading weights on the drive .* failed at byte 0: Input/output error"):
        reader.read([Run(file, 0, 8192)], [0], target)

    def replugged(descriptor: int, *rest: Any) -> int:
        return unplugged(descriptor) if descriptor in dead else genuine(descriptor, *rest)

    monkeypatch.setattr(os, "preadv", replugged)
    target[:8192] = bytes(8192)
    reader.read([Run(file, 0, 8192)], [0], target)
    assert bytes(target[:8192]) == file.read_bytes()


def test_what_only_waits_can_be_cancelled_and_is_then_never_written(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"x" * 8192)
    reader, done = DiskReader(in_flight=1), queue.SimpleQueue[Any]()
    gate, begun = threading.Event(), threading.Event()

    def enter() -> None:
        begun.set()
        gate.wait()

    reader._enter = enter  # type: ignore[method-assign]
    targets = [aligned_memory(1 << 16) for _ in range(2)]
    first, second = (reader.submit([Run(tmp_path / "data", 0, 8192)], [0], target, n, done) for n, target in enumerate(targets))
    begun.wait()
    assert not first.cancel(), "it is being read"
    assert second.cancel()
    reader._leave = lambda: None  # type: ignore[method-assign]
    gate.set()
    assert done.get()[0] == 0
    reader.close()
    assert done.empty()
    assert bytes(targets[1][:8192]) == bytes(8192)


def test_what_goes_to_a_device_passes_through_memory_in_parts(
    reader: DiskReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.tiers.dense._PART", 30_000)
    file = tmp_path / "data"
    data = os.urandom(100_000)
    file.write_bytes(data)
    refs = [TensorRef(f"t{number}", file, number * 10_000, 10_000, "U8", (10_000,)) for number in range(10)]
    loaded, told = [], []
    load = dense.load_dense

    def note(reader: DiskReader, some: list[TensorRef], progress: Any) -> dict[str, torch.Tensor]:
        loaded.append(sum(ref.nbytes for ref in some))
        return load(reader, some, progress)

    monkeypatch.setattr(dense, "load_dense", note)
    placed, small = dense.load_placed(reader, refs[1:], refs[:1], torch.device("meta"), lambda *now: told.append(now))
    assert max(loaded) <= 30_000
    assert sum(loaded) == len(data)
    assert {name: tensor.device.type for name, tensor in placed.items()} == {f"t{number}": "meta" for number in range(1, 10)}
    assert bytes(small["t0"].tolist()) == data[:10_000]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (len(data), len(data))
    in_ram, beside = dense.load_placed(reader, refs[1:], refs[:1], torch.device("cpu"), lambda *_: None)
    assert in_ram is beside
    assert bytes(in_ram["t7"].tolist()) == data[70_000:80_000]
