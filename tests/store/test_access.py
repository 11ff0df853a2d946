"""Who may have what: each refusal has a sentence of its own, and the token goes to the Hub and nowhere else."""

import logging
import socket
from pathlib import Path

import pytest

from engine.errors import EngineError
from engine.store.download import Order
from engine.store.hub import check_repo_name, check_revision
from tests.hub import faults
from tests.hub.server import FakeHub
from tests.store.conftest import line_to, model_files
from tests.store.steps import REPO, SHARD, Pull, assert_same

TOKEN = "hf_secretsecretsecret"


def refused(hub: FakeHub, computer: Path, token: str | None, repo: str = REPO, revision: str = "main") -> EngineError:
    with pytest.raises(EngineError) as caught:
        Pull(line_to(hub, token), computer / "data", Order(repo, revision)).run()
    return caught.value


def test_each_refusal_has_its_own_sentence(hub: FakeHub, computer: Path) -> None:
    hub.tokens = {TOKEN}
    hub.add("maker/Gated", model_files(), gate="manual")
    hub.add("maker/Private", model_files(), is_private=True)
    errors = [
        refused(hub, computer, None, "maker/Gated"),
        refused(hub, computer, TOKEN, "maker/Gated"),
        refused(hub, computer, "hf_expired", REPO),
        refused(hub, computer, None, "maker/Private"),
        refused(hub, computer, TOKEN, "maker/Nothing"),
        refused(hub, computer, None, REPO, "v9"),
    ]
    assert [error.code for error in errors] == [
        "hub.gated", "hub.gated", "hub.bad_token", "hub.no_repo", "hub.no_repo", "hub.no_revision",
    ]  # fmt: skip
    assert len({str(error) for error in errors}) == len(errors)
    assert "sign in" in errors[0].text
    assert "https://huggingface.co/maker/Gated" in errors[1].hint
    assert not any(TOKEN in str(error) or "hf_expired" in str(error) for error in errors)


def test_a_gate_that_closes_in_mid_download(hub: FakeHub, pull: Pull) -> None:
    hub.script("config.json", faults.Status(403, {"X-Error-Code": "GatedRepo"}))
    with pytest.raises(EngineError) as caught:
        pull.run()
    assert caught.value.code == "hub.gated"


def test_the_token_reaches_the_hub_alone_and_no_file_or_log(
    hub: FakeHub, computer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub.tokens = {TOKEN}
    repo = hub.add("maker/Gated", model_files(), gate="auto", accepted={TOKEN})
    hub.script(SHARD, faults.Cut(1_500_000))
    with caplog.at_level(logging.DEBUG):
        folder = Pull(line_to(hub, TOKEN), computer / "data", Order("maker/Gated")).run()
    assert_same(folder, repo)
    with_token = {seen.host for seen in hub.seen if TOKEN in str(seen.headers)}
    assert with_token == {"hub"}
    assert {seen.host for seen in hub.seen} == {"hub", "storage"}
    assert TOKEN not in caplog.text
    assert not any(
        TOKEN.encode() in path.read_bytes() for path in computer.rglob("*") if path.is_file() and not path.is_symlink()
    )


@pytest.mark.parametrize(
    "name", ["", "model", "a/b/c", "../../etc/passwd", "maker/..", "ma ker/x", "maker/mödel", "-/-", "a/" + "x" * 300]
)
def test_names_that_are_no_repository(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        check_repo_name(name)
    assert caught.value.code == "hub.name"


def test_a_pasted_address_is_a_name() -> None:
    assert check_repo_name(" https://huggingface.co/Qwen/Qwen3-30B-A3B/ ") == "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize("revision", ["", "../x", "a b", "x/../../y", "/etc"])
def test_revisions_that_would_leave_the_cache(revision: str) -> None:
    with pytest.raises(EngineError):
        check_revision(revision)


@pytest.mark.parametrize("name", ["../evil.safetensors", "/etc/evil.safetensors", "a\\b.safetensors", "sub/model.safetensors"])
def test_an_index_that_names_files_outside(hub: FakeHub, pull: Pull, computer: Path, name: str) -> None:
    index = b'{"weight_map": {"a": %s}}' % (b'"' + name.replace("\\", "\\\\").encode() + b'"')
    hub.add(REPO, model_files() | {"model.safetensors.index.json": index, name: b"x" * 5000})
    with pytest.raises(EngineError) as caught:
        pull.run()
    assert caught.value.code == "hub.incomplete"
    assert not list(computer.rglob("*evil*"))


def test_a_repository_in_another_format(hub: FakeHub, computer: Path) -> None:
    hub.add("maker/GGUF", {"config.json": b"{}", "model.gguf": b"x" * 5000})
    error = refused(hub, computer, None, "maker/GGUF")
    assert (error.code, "model.gguf" in error.text) == ("hub.format", True)


def test_a_proxy_is_used_and_told_who_asks(hub: FakeHub, pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy for http is asked for whole addresses; this one is the fake hub, which sees them."""
    monkeypatch.setenv("http_proxy", hub.endpoint.replace("http://", "http://user:p%40ss@"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    connection = pull.line.connect()
    connection.open(f"http://mirror.example/{REPO}/resolve/main/config.json", 0, 10)
    connection.close()
    (seen,) = (seen for seen in hub.seen if seen.path.startswith("http://mirror.example/"))
    assert seen.headers["Proxy-Authorization"] == "Basic dXNlcjpwQHNz"
    assert seen.headers["Host"] == "mirror.example"


def test_a_port_where_nobody_listens(hub: FakeHub, computer: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    line = line_to(hub)
    from dataclasses import replace

    from engine.store.web import Access

    with pytest.raises(EngineError) as caught:
        Pull(replace(line, access=Access(f"http://127.0.0.1:{port}")), computer / "data").run()
    assert caught.value.code == "hub.unreachable"
