"""`python -m engine download` over the wire, and `stoker pull`, `models`, `rm`, as processes."""

import json
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from engine.protocol import (
    AddDownload,
    AddFolder,
    Cancel,
    DownloadAction,
    DownloadProgress,
    Downloads,
    DownloadState,
    EditDownload,
    Failed,
    Hello,
    LimitDownloads,
    ListDownloads,
    ListModels,
    Message,
    Models,
    MoveModel,
    Progress,
    Removed,
    RemoveModel,
    RunDownloads,
    VerifyModel,
    decode,
    encode,
)
from tests.helpers.tiny import write_mixtral
from tests.hub import faults, process
from tests.hub.server import FakeHub
from tests.store.conftest import model_files
from tests.store.steps import REPO, SECOND, SHARD, assert_same

TOKEN = "hf_secretsecretsecret"


class Child:
    """The download child with its pipes."""

    def __init__(self, hub: FakeHub, home: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "engine", "download"],
            env=process.environment(hub, home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert isinstance(self.read(), Hello)

    def read(self) -> Message:
        assert self.process.stdout
        return decode(self.process.stdout.readline())

    def send(self, request: Message) -> None:
        assert self.process.stdin
        self.process.stdin.write(encode(request).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, request: Message) -> Message:
        """The closing event of this request; progress is passed over."""
        self.send(request)
        while isinstance(event := self.read(), DownloadProgress | Progress):
            pass
        return event

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def end(self) -> str:
        """Close stdin as the window does; the log."""
        _, log = self.process.communicate(timeout=20)
        assert self.process.returncode == 0
        return log.decode()


def test_the_queue_and_the_library_over_the_wire(hub: FakeHub, tmp_path: Path) -> None:
    hub.tokens = {TOKEN}
    hub.add("maker/Gated", model_files(), gate="auto", accepted={TOKEN})
    with Child(hub, tmp_path) as child:
        added = child.ask(AddDownload(1, REPO))
        assert isinstance(added, Downloads)
        assert [(job.repo, job.state) for job in added.jobs] == [(REPO, DownloadState.WAITING)]
        child.ask(AddDownload(2, "maker/Gated", folder=str(tmp_path / "chosen")))
        child.ask(EditDownload(3, "maker/Gated", DownloadAction.MOVE, 0))
        done = child.ask(RunDownloads(4, token=TOKEN))
        assert isinstance(done, Downloads)
        assert [(job.repo, job.state, job.done_bytes) for job in done.jobs] == [
            ("maker/Gated", DownloadState.DONE, 6_021_361), (REPO, DownloadState.DONE, 6_021_361),
        ]  # fmt: skip
        models = child.ask(ListModels(5))
        assert isinstance(models, Models)
        paths = {entry.repo: entry.path for entry in models.models}
        assert paths["maker/Gated"] == str(tmp_path / "chosen" / "maker--Gated")
        assert isinstance(child.ask(VerifyModel(6, paths[REPO])), Models)
        listed = child.ask(RemoveModel(7, paths[REPO], only_list=True))
        assert isinstance(listed, Removed)
        assert all(Path(file).exists() for file in listed.files)
        moved = child.ask(MoveModel(8, paths["maker/Gated"], str(tmp_path / "elsewhere")))
        assert isinstance(moved, Models), moved
        assert_same(tmp_path / "elsewhere" / "maker--Gated", hub.repos["maker/Gated"])
        removed = child.ask(RemoveModel(9, paths[REPO]))
        assert isinstance(removed, Removed)
        assert not any(Path(file).exists() for file in removed.files)
        added_folder = child.ask(AddFolder(10, str(write_mixtral(tmp_path / "byhand"))))
        assert isinstance(added_folder, Models)
        assert "byhand" in {entry.name for entry in added_folder.models}
        for request, code in (
            (AddDownload(11, "nonsense"), "hub.name"),
            (EditDownload(12, "a/b", DownloadAction.PAUSE), "download.no_job"),
            (RemoveModel(13, "byhand"), "store.not_ours"),
            (Hello(1, "", 1), "protocol.unexpected"),
        ):
            answer = child.ask(request)
            assert isinstance(answer, Failed)
            assert answer.code == code
        assert child.process.stdin
        child.process.stdin.write(b'{"type": "RunDownloads", "request_id": 14, "token": "%s", "extra": 1}\n' % TOKEN.encode())
        child.process.stdin.flush()
        assert isinstance(child.read(), Failed)
        log = child.end()
        assert TOKEN not in log
        assert "secret" not in log, "signatures of links neither"


def test_a_running_download_is_paused_limited_cancelled_and_left(hub: FakeHub, tmp_path: Path) -> None:
    hub.always(SHARD, faults.Slow(2e6))
    with Child(hub, tmp_path) as child:
        child.ask(AddDownload(1, REPO))
        child.send(RunDownloads(2))
        while not (isinstance(event := child.read(), DownloadProgress) and event.job.done_bytes > 500_000):
            pass
        assert isinstance(event, DownloadProgress)
        assert event.job.state is DownloadState.RUNNING
        assert isinstance(child.ask(LimitDownloads(3, 1_000_000)), Downloads)
        child.send(Cancel(2))
        while not isinstance(event := child.read(), Downloads):
            pass
        assert event.request_id == 2
        assert event.jobs[0].state is DownloadState.WAITING, "cancelling the run pauses nobody's job"
        child.send(RunDownloads(4))
        while not isinstance(child.read(), DownloadProgress):
            pass
        begun = time.monotonic()
        child.end()  # in mid-download
        assert time.monotonic() - begun < 5
    with Child(hub, tmp_path) as again:
        queue = again.ask(ListDownloads(1))
        assert isinstance(queue, Downloads)
        assert queue.jobs[0].state is DownloadState.WAITING
        assert queue.jobs[0].done_bytes > 400_000
        again.end()


def test_pull_models_and_rm(hub: FakeHub, tmp_path: Path) -> None:
    code, out, err = process.run(hub, tmp_path, "pull", REPO, "--folder", str(tmp_path / "mo dels"))
    assert (code, err) == (0, "")
    folder = tmp_path / "mo dels" / "maker--Model-8x1"
    assert str(folder) in out
    assert_same(folder, hub.repos[REPO])
    code, out, _ = process.run(hub, tmp_path, "models", "--json")
    (entry,) = json.loads(out)["models"]
    assert (entry["repo"], entry["licence"], entry["state"]) == (REPO, "apache-2.0", "whole")
    (folder / SECOND).write_bytes(b"x" * 3_000_000)
    code, out, err = process.run(hub, tmp_path, "models", "--verify", REPO)
    assert (code, "1 of 7 files" in err) == (1, True)
    assert process.run(hub, tmp_path, "pull", REPO)[0] == 0
    assert_same(folder, hub.repos[REPO])
    code, out, err = process.run(hub, tmp_path, "rm", REPO)
    assert (code, "--yes" in err, folder.exists()) == (1, True, True)
    code, out, err = process.run(hub, tmp_path, "rm", REPO, "--yes", "--json")
    assert json.loads(out)["bytes"] == 6_021_361
    assert not folder.exists()
    code, out, err = process.run(hub, tmp_path, "pull", "maker/Nothing", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "hub.no_repo")


def test_pull_proposes_a_chat_only_with_what_can_be_loaded(hub: FakeHub, tmp_path: Path) -> None:
    tiny = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    files: dict[str, bytes | Path] = {item.name: item.read_bytes() for item in tiny.iterdir()}
    hub.add("maker/Whole", files)
    hub.add("maker/Foreign", files | {"config.json": b"[1, 2]"})
    assert "Try: stoker chat --model maker/Whole" in process.run(hub, tmp_path, "pull", "maker/Whole")[1]
    code, out, _ = process.run(hub, tmp_path, "pull", "maker/Foreign")
    assert (code, "Try:" in out, "holds no JSON object" in out) == (0, False, True)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT to one process")
def test_ctrl_c_pauses_and_says_how_to_go_on(hub: FakeHub, tmp_path: Path) -> None:
    hub.always(SHARD, faults.Slow(1e6))
    running = process.start(hub, tmp_path, "pull", REPO)
    while not list(tmp_path.rglob("*.part.log")) or hub.sent_bytes < 1_000_000:
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert f"stoker pull {REPO}" in err
    assert "Traceback" not in err
    hub.always(SHARD, None)
    before = len(hub.seen)
    assert process.run(hub, tmp_path, "pull")[0] == 0, "the queue goes on"
    assert len(hub.seen) == before, "what was paused by hand waits for its own name"
    assert process.run(hub, tmp_path, "pull", REPO)[0] == 0


def test_the_token_of_the_environment(hub: FakeHub, tmp_path: Path) -> None:
    hub.tokens = {TOKEN}
    hub.add("maker/Gated", model_files(), gate="auto", accepted={TOKEN})
    code, out, _ = process.run(hub, tmp_path, "pull", "maker/Gated", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (1, "hub.gated")
    assert process.run(hub, tmp_path, "pull", "maker/Gated", HF_TOKEN=TOKEN)[0] == 0
    (tmp_path / "hf" / "token").write_text(TOKEN)
    code, out, _ = process.run(hub, tmp_path, "pull", "maker/Gated", "--folder", str(tmp_path / "x"), "--json")
    assert code == 0, "the token file of the Hub's own tools"


def test_over_tls_with_a_certificate_that_the_person_trusts(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hub",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with FakeHub(tls) as hub:
        repo = hub.add(REPO, model_files())
        hub.script(SHARD, faults.Cut(1_500_000))
        code, out, err = process.run(hub, tmp_path, "pull", REPO, "--json", SSL_CERT_FILE=str(certificate))
        assert code == 0, err
        assert_same(Path(json.loads(out)["path"]), repo)
