"""The queue: what survives, who works on a job, and that nothing is lost or done twice."""

import json
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.protocol import DownloadAction, DownloadProgress, DownloadState
from engine.store.jobs import Jobs
from engine.store.records import Records
from engine.store.remove import delete_partial
from engine.store.run import Bench, run_job, run_queue
from engine.store.web import Line
from tests.hub import faults
from tests.hub.server import FakeHub
from tests.store.conftest import line_to, model_files
from tests.store.steps import REPO, SECOND, SHARD, leftovers, sent_for


def bench(line: Line, data: Path, is_stopped: threading.Event | None = None) -> tuple[Bench, list[DownloadProgress]]:
    shown: list[DownloadProgress] = []
    return Bench(data, line, (is_stopped or threading.Event()).is_set, shown.append), shown


def state(data: Path, repo: str = REPO) -> DownloadState | None:
    job = Jobs(data).find(repo)
    return job.state if job is not None else None


def test_three_downloads_survive_a_restart_in_their_order_with_their_bytes(hub: FakeHub, line: Line, computer: Path) -> None:
    data = computer / "data"
    hub.add("maker/B", model_files())
    hub.always(SECOND, faults.Slow(3e6))
    jobs = Jobs(data)
    for repo in (REPO, "maker/B", "maker/C"):
        jobs.add(repo, "main", "")
    jobs.edit("maker/C", DownloadAction.PAUSE)
    jobs.edit("maker/B", DownloadAction.MOVE, 0)
    stop = threading.Event()

    def show(progress: DownloadProgress) -> None:
        if progress.job.done_bytes > 4e6:
            stop.set()

    work = replace(bench(line, data, stop)[0], show=show)
    run_queue(work)
    after = Jobs(data).all()  # as another process would read it
    assert [(job.repo, job.state) for job in after] == [
        ("maker/B", DownloadState.WAITING), (REPO, DownloadState.WAITING), ("maker/C", DownloadState.PAUSED),
    ]  # fmt: skip
    assert after[0].done_bytes > 4e6
    assert after[0].total_bytes == 6_021_361
    before = hub.sent_bytes
    hub.always(SECOND, None)
    work, _ = bench(line, data)
    run_queue(work)
    assert [job.state for job in Jobs(data).all()] == [DownloadState.DONE, DownloadState.DONE, DownloadState.PAUSED]
    assert hub.sent_bytes - before < 2 * 6_021_361 - 4e6 + 1e6, "it went on from where it was"


def test_one_job_per_repository_however_often_it_is_asked(hub: FakeHub, line: Line, computer: Path) -> None:
    data = computer / "data"
    hub.always(SHARD, faults.Slow(5e6))
    for name in (REPO, REPO.lower(), f"https://huggingface.co/{REPO}"):
        Jobs(data).add(name, "main", "")
    assert len(Jobs(data).all()) == 1
    first, _ = bench(line, data)
    second, looked_on = bench(line_to(hub), data)
    threads = [threading.Thread(target=run_job, args=(one, REPO)) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert state(data) is DownloadState.DONE
    assert (sent_for(hub, SHARD), sent_for(hub, SECOND)) == (1, 1)
    assert looked_on or _, "the one that came second looked on"


def test_a_refused_place_or_revision_gives_way_to_another(hub: FakeHub, line: Line, computer: Path) -> None:
    data = computer / "data"
    foreign = computer / "models" / REPO.replace("/", "--")
    foreign.mkdir(parents=True)
    work, _ = bench(line, data)
    for revision, folder, code in (
        ("typo", "", "hub.no_revision"),
        ("main", str(foreign.parent), "download.taken"),
        ("main", "", ""),
    ):
        Jobs(data).add(REPO, revision, folder)
        ended = run_job(work, REPO)
        assert ended is not None
        assert ended.code == code
    assert state(data) is DownloadState.DONE


def test_a_pause_from_another_process_ends_the_work_and_keeps_the_bytes(hub: FakeHub, line: Line, computer: Path) -> None:
    data = computer / "data"
    hub.always(SHARD, faults.Slow(2e6))
    Jobs(data).add(REPO, "main", "")
    work, shown = bench(line, data)
    thread = threading.Thread(target=run_job, args=(work, REPO))
    thread.start()
    while not any(progress.job.done_bytes > 1e6 for progress in shown):
        thread.join(0.02)
    assert Jobs(data).all()[0].state is DownloadState.RUNNING
    Jobs(data).edit(REPO, DownloadAction.PAUSE)
    thread.join(10)
    assert not thread.is_alive()
    assert state(data) is DownloadState.PAUSED
    assert shown[-1].job.state is DownloadState.PAUSED
    assert leftovers(computer)


@pytest.mark.parametrize("keeps", [True, False])
def test_cancel_keeps_or_deletes_what_has_arrived(hub: FakeHub, line: Line, computer: Path, keeps: bool) -> None:
    data = computer / "data"
    hub.always(SECOND, faults.Slow(2e6))
    foreign = computer / "hf" / "hub" / "models--maker--Model-8x1" / "blobs" / "theirs"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"another tool's")
    Jobs(data).add(REPO, "main", "")
    work, shown = bench(line, data)
    thread = threading.Thread(target=run_job, args=(work, REPO))
    thread.start()
    while not any(progress.job.done_bytes > 4e6 for progress in shown):
        thread.join(0.02)
    Jobs(data).edit(REPO, DownloadAction.CANCEL if keeps else DownloadAction.DELETE)
    if not keeps:
        with Jobs(data).held(REPO, 10):
            delete_partial(Records(data), REPO)
    thread.join(10)
    assert Jobs(data).all() == ()
    assert foreign.read_bytes() == b"another tool's"
    left = {path.name for path in foreign.parent.iterdir()} - {"theirs"}
    assert bool(left) is keeps


def test_a_failure_is_kept_with_its_sentence_and_the_next_job_runs(hub: FakeHub, line: Line, computer: Path) -> None:
    data = computer / "data"
    Jobs(data).add("maker/Nothing", "main", "")
    Jobs(data).add(REPO, "main", "")
    work, _ = bench(line, data)
    run_queue(work)
    failed, done = Jobs(data).all()
    assert (failed.state, failed.code, done.state) == (DownloadState.FAILED, "hub.no_repo", DownloadState.DONE)
    assert failed.text
    assert failed.hint
    Jobs(data).edit("maker/Nothing", DownloadAction.RESUME)
    resumed = Jobs(data).find("maker/Nothing")
    assert resumed is not None
    assert (resumed.state, resumed.text) == (DownloadState.WAITING, "")


def test_a_broken_queue_file_is_put_aside_and_not_lost(computer: Path) -> None:
    data = computer / "data"
    Jobs(data).add(REPO, "main", "")
    (data / "downloads.json").write_text('{"jobs": [{')
    assert Jobs(data).all() == ()
    assert [path.read_text() for path in data.glob("downloads.json.corrupt-*")] == ['{"jobs": [{']
    with pytest.raises(EngineError, match="not among the downloads"):
        Jobs(data).edit(REPO, DownloadAction.PAUSE)


def test_a_rate_is_not_shown_from_a_frozen_sample(hub: FakeHub, computer: Path) -> None:
    """While the server stalls no rate and no time is told, and the reason is."""
    data = computer / "data"
    line = line_to(hub)
    line = replace(line, patience=replace(line.patience, stall_seconds=5.0))
    hub.script(SHARD, faults.Stall(2_000_000))
    Jobs(data).add(REPO, "main", "")
    work, shown = bench(line, data)
    run_job(work, REPO)
    assert "nothing came for" in " ".join(progress.job.text for progress in shown)
    (amount, times), *_ = Counter(progress.job.done_bytes for progress in shown).most_common()
    stalled = [progress for progress in shown if progress.job.done_bytes == amount and not progress.job.text]
    assert times > 10
    assert stalled[-1].bytes_per_second is None
    assert stalled[-1].seconds_left is None
    assert json.loads((data / "downloads.json").read_text())["jobs"][0]["state"] == "done"
