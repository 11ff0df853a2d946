"""A drive that fills: refused before the start, or paused with the bytes that are needed, and going on when there is room."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.protocol import DownloadProgress, DownloadState
from engine.store.download import Order
from engine.store.jobs import Jobs
from engine.store.records import Records
from engine.store.run import Bench, run_job
from engine.store.target import check_folder
from tests.hub import faults
from tests.hub.server import FakeHub
from tests.store.conftest import line_to
from tests.store.steps import REPO, SECOND, Pull, assert_same

_MOUNTED_MB = 80


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root on Linux")
    folder = tmp_path / "drive"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_MOUNTED_MB}m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no small file system here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(drive: Path, leave: int) -> Path:
    filler = drive / "filler"
    with filler.open("ab") as stream:
        while (free := os.statvfs(drive).f_bavail * os.statvfs(drive).f_bsize) > leave:
            stream.write(bytes(min(1 << 20, free - leave)))
            stream.flush()
    return filler


def test_a_model_larger_than_the_space_is_refused_before_it_starts(hub: FakeHub, drive: Path, computer: Path) -> None:
    fill(drive, 2_000_000)
    with pytest.raises(EngineError) as caught:
        Pull(line_to(hub), computer / "data", Order(REPO, folder=str(drive / "models"))).run()
    assert caught.value.code == "download.no_space"
    assert "needs 6.02 MB;" in caught.value.text
    assert "2.00 MB free, and 64.0 MB must stay free" in caught.value.text
    assert not hub.requests_for(SECOND)


def test_one_refused_for_space_can_go_to_another_folder(hub: FakeHub, drive: Path, computer: Path) -> None:
    fill(drive, 2_000_000)
    data = computer / "data"
    jobs, work = Jobs(data), Bench(data, line_to(hub), lambda: False, lambda _: None)
    jobs.add(REPO, "main", str(drive / "models"))
    refused = run_job(work, REPO)
    assert refused is not None
    assert refused.code == "download.no_space"
    assert Records(data).all() == []
    jobs.add(REPO, "main", str(computer / "roomy"))
    ended = run_job(work, REPO)
    assert ended is not None
    assert ended.state is DownloadState.DONE
    assert_same(computer / "roomy" / REPO.replace("/", "--"), hub.repos[REPO])


def test_one_that_has_begun_counts_what_is_there_and_waits_for_the_rest(
    hub: FakeHub, drive: Path, computer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = Pull(line_to(hub), computer / "data", Order(REPO, folder=str(drive / "models")))
    hub.always(SECOND, faults.Slow(3e6))
    pull.run_until(4_000_000)
    monkeypatch.setattr("engine.store.download._SPARE_BYTES", 100_000)
    monkeypatch.setattr("engine.store.download._FULL_POLL_SECONDS", 0.1)
    monkeypatch.setattr("engine.store.download._LEAST_FULL_SECONDS", 0.2)
    filler = fill(drive, 1_000_000)
    pull.reports.clear()
    thread = threading.Thread(target=pull.run)
    thread.start()
    _until(lambda: "more must be free" in pull.troubles)
    assert pull.reports[-1].done_bytes >= 4_000_000
    asked = len(hub.requests_for(SECOND))
    os.truncate(filler, filler.stat().st_size - 1_500_000)  # less than the model is free then, more than what is missing
    thread.join(30)
    assert not thread.is_alive()
    assert len(hub.requests_for(SECOND)) > asked, "nothing was brought while it waited"
    assert_same(drive / "models" / "maker--Model-8x1", hub.repos[REPO])


def test_a_drive_that_fills_pauses_tells_how_much_and_goes_on(
    hub: FakeHub, drive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stoker's own files are on the same drive, at 0 bytes free; a restart meanwhile works too."""
    monkeypatch.setattr("engine.store.download._SPARE_BYTES", 0)
    data = drive / "data"
    hub.always(SECOND, faults.Slow(2e6))
    Jobs(data).add(REPO, "main", str(drive / "models"))
    shown: list[DownloadProgress] = []
    stop = threading.Event()
    work = Bench(data, line_to(hub), stop.is_set, shown.append)
    thread = threading.Thread(target=run_job, args=(work, REPO))
    thread.start()
    _until(lambda: bool(shown) and shown[-1].job.done_bytes > 3_500_000)
    filler = fill(drive, 0)
    _until(lambda: "is full" in shown[-1].job.text)
    assert shown[-1].job.state is DownloadState.RUNNING
    assert "more must be free" in shown[-1].job.text
    assert str(drive) in shown[-1].job.text

    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert Jobs(data).all()[0].repo == REPO, "the queue can be read at 0 bytes free"
    before = shown[-1].job.done_bytes
    stop.clear()
    os.truncate(filler, filler.stat().st_size - 3_500_000)
    work = replace(work, line=line_to(hub))
    assert run_job(work, REPO) is not None
    job = Jobs(data).find(REPO)
    assert job is not None
    assert job.state is DownloadState.DONE, job
    assert min(progress.job.done_bytes for progress in shown[-5:]) >= before
    assert_same(drive / "models" / "maker--Model-8x1", hub.repos[REPO])


def test_it_goes_on_by_itself_when_space_is_freed(
    hub: FakeHub, drive: Path, computer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.store.download._SPARE_BYTES", 0)
    monkeypatch.setattr("engine.store.download._LEAST_FULL_SECONDS", 0.2)
    monkeypatch.setattr("engine.store.download._FULL_POLL_SECONDS", 0.1)
    hub.always(SECOND, faults.Slow(2e6))
    pull = Pull(line_to(hub), computer / "data", Order(REPO, folder=str(drive / "models")))
    thread = threading.Thread(target=pull.run)
    thread.start()
    _until(lambda: bool(pull.reports) and pull.reports[-1].done_bytes > 3_500_000)
    filler = fill(drive, 0)
    _until(lambda: "is full" in pull.troubles)
    filler.unlink()
    thread.join(30)
    assert not thread.is_alive()
    assert_same(drive / "models" / "maker--Model-8x1", hub.repos[REPO])


def test_a_write_protected_drive_is_refused(drive: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(drive)], check=True)
    with pytest.raises(EngineError) as caught:
        check_folder(drive / "models")
    assert caught.value.code == "store.read_only"


def test_the_root_of_a_drive_is_refused(drive: Path) -> None:
    with pytest.raises(EngineError) as caught:
        check_folder(drive)
    assert caught.value.code == "store.drive_root"


def _until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
