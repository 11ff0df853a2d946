"""A stand-in for the Hugging Face Hub on loopback: the three addresses that a download needs, on a hub and a storage host.

Real HTTP. Repositories are dictionaries of files; what goes wrong is scripted per file, one fault for each request.
"""

import hashlib
import json
import ssl
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.hub.faults import Fault
from tests.hub.handler import Blob, Handler

LFS_BYTES = 4096  # files from here on are in large-file storage: named by sha256 and served by the other host


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass
class Repo:
    """`revisions` are commits by name; `gate` is "", "auto" or "manual", passed with a token out of `accepted`."""

    files: dict[str, bytes | Path]
    commit: str
    gate: str = ""
    is_private: bool = False
    accepted: set[str] = field(default_factory=set)
    licence: str = "apache-2.0"
    older: dict[str, dict[str, bytes | Path]] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)  # of files that are paths: known, not computed
    tags: tuple[str, ...] = ()
    downloads: int = 1
    parameters: dict[str, int] = field(default_factory=dict)  # by type, as the Hub counts them


@dataclass(frozen=True)
class Seen:
    host: str
    path: str
    headers: dict[str, str]
    status: int


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, hub: "FakeHub", name: str, tls: ssl.SSLContext | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "https" if tls else "http"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.hub, self.name = hub, name
        self.hang = hub.hang

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}"

    def serve(self, handler: Handler) -> None:
        self.hub.serve(self, handler)

    def note(self, handler: Handler, code: int) -> None:
        self.hub.seen.append(Seen(self.name, unquote(handler.path), dict(handler.headers), code))

    def note_sent(self, count: int) -> None:
        with self.hub.lock:
            self.hub.sent_bytes += count

    def handle_error(self, *_: Any) -> None:
        pass  # clients that go away are what this is for


class FakeHub:
    """Use as a context manager. `storage` is a second host, to which large files are redirected."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.repos: dict[str, Repo] = {}
        self.tokens: set[str] = set()
        self.seen: list[Seen] = []
        self.sent_bytes = 0
        self.api_faults: deque[tuple[int, dict[str, str]]] = deque()
        self.has_etags = True
        self.hang = threading.Event()
        self.lock = threading.Lock()
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._always: dict[str, Fault | None] = {}
        self._servers = [Server(self, name, tls) for name in ("hub", "storage")]

    @property
    def endpoint(self) -> str:
        return self._servers[0].url

    def add(self, name: str, files: dict[str, bytes | Path], **options: Any) -> Repo:
        """A repository, or another commit of one, whose earlier commits stay reachable."""
        stamp = "".join(f"{key}{value!r}" for key, value in sorted(files.items()))
        repo = Repo(files, hashlib.sha1(stamp.encode(), usedforsecurity=False).hexdigest(), **options)
        if (before := self.repos.get(name)) is not None:
            repo.older = before.older | {before.commit: before.files}
        self.repos[name] = repo
        return repo

    def script(self, file: str, *faults: Fault) -> None:
        """The next requests for that file fare so, one after the other; those after them go well."""
        self._faults[file].extend(faults)

    def always(self, file: str, fault: Fault | None) -> None:
        """Whatever is not scripted; None for no fault."""
        self._always[file] = fault

    def requests_for(self, file: str) -> list[Seen]:
        """Those that were answered with bytes or an error, not with a redirect."""
        return [seen for seen in self.seen if urlsplit(seen.path).path.endswith(f"/{file}") and seen.status not in (302, 307)]

    def serve(self, server: Server, handler: Handler) -> None:
        parts = [unquote(part) for part in urlsplit(handler.path).path.strip("/").split("/")]
        if server.name == "storage":
            self._serve_file(handler, parts[-1], Blob(*self._content(parts[1] + "/" + parts[2], parts[3], parts[-1])))
        elif parts == ["api", "models"]:
            self._serve_list(handler, parse_qs(urlsplit(handler.path).query))
        elif parts[:2] == ["api", "models"]:
            self._serve_api(handler, "/".join(parts[2:4]), parts[4:])
        elif len(parts) >= 5 and parts[2] == "resolve":
            self._serve_resolve(handler, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            handler.answer(404)

    def __enter__(self) -> "FakeHub":
        for server in self._servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _serve_api(self, handler: Handler, name: str, rest: list[str]) -> None:
        if self.api_faults:
            code, headers = self.api_faults.popleft()
            handler.answer(code, b"<html></html>", headers)
            return
        repo = self._allowed(handler, name, is_file=rest == ["auth-check"])
        if repo is None:
            return
        if rest == ["auth-check"]:
            handler.answer(200, b"OK")
            return
        commit, files = self._revision(repo, rest[1] if rest[:1] == ["revision"] else "main")
        if not commit:
            handler.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [self._sibling(repo, file, content) for file, content in files.items()]
        info = {
            "_id": "1", "id": name, "modelId": name, "sha": commit, "private": repo.is_private, "gated": repo.gate or False,
            "disabled": False, "downloads": 1, "likes": 1, "tags": [], "cardData": {"license": repo.licence}, "siblings": siblings,
        }  # fmt: skip
        handler.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json; charset=utf-8"})

    def _serve_list(self, handler: Handler, query: dict[str, list[str]]) -> None:
        """`search` is part of the name, every `filter` a tag; sorted by downloads, as most people ask."""
        if self.api_faults:
            code, headers = self.api_faults.popleft()
            handler.answer(code, b"<html></html>", headers)
            return
        text, tags = query.get("search", [""])[0].lower(), set(query.get("filter", []))
        found = [
            {
                "_id": "1", "id": name, "modelId": name, "gated": repo.gate or False, "downloads": repo.downloads, "likes": 1,
                "config": {key: value for key, value in _config(repo).items() if key in ("model_type", "quantization_config")},
                "cardData": {"license": repo.licence}, "safetensors": {"parameters": repo.parameters, "total": 0},
                "lastModified": "2026-11-01T00:00:00.000Z",
            }
            for name, repo in self.repos.items()
            if text in name.lower() and tags <= {"safetensors", _config(repo).get("model_type"), *repo.tags}
        ]  # fmt: skip
        found.sort(key=lambda item: int(str(item["downloads"])), reverse=True)
        handler.answer(200, json.dumps(found).encode(), {"Content-Type": "application/json; charset=utf-8"})

    def _sibling(self, repo: Repo, file: str, content: bytes | Path) -> dict[str, Any]:
        blob = Blob(content)
        entry: dict[str, Any] = {"rfilename": file, "size": blob.size}
        if blob.size >= LFS_BYTES:
            digest = repo.sha256.get(file) or hashlib.sha256(blob.bytes()).hexdigest()
            return entry | {"blobId": "0" * 40, "lfs": {"sha256": digest, "size": blob.size, "pointerSize": 130}}
        return entry | {"blobId": git_sha1(blob.bytes())}

    def _serve_resolve(self, handler: Handler, name: str, revision: str, file: str) -> None:
        repo = self._allowed(handler, name, is_file=True)
        if repo is None:
            return
        commit, files = self._revision(repo, revision)
        if not commit or file not in files:
            handler.answer(404, b"", {"X-Error-Code": "EntryNotFound" if commit else "RevisionNotFound"})
        elif Blob(files[file]).size >= LFS_BYTES:
            location = f"{self._servers[1].url}/blobs/{name}/{commit}/{handler.path.rpartition('/')[2]}?signature=secret"
            handler.answer(302, b"", {"Location": location, "X-Repo-Commit": commit})
        else:
            self._serve_file(handler, file, Blob(*self._content(name, commit, file)))

    def _serve_file(self, handler: Handler, file: str, blob: Blob) -> None:
        with self.lock:
            queue = self._faults[file]
            fault = queue.popleft() if queue else self._always.get(file)
        if fault is not None:
            fault(handler, blob)
        else:
            handler.send_file(blob)

    def _content(self, name: str, commit: str, file: str) -> tuple[bytes | Path, str]:
        content = self._revision(self.repos[name], commit)[1][file]
        return content, f'"{file}-{commit[:8]}"' if self.has_etags else ""

    def _revision(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes | Path]]:
        if revision in ("main", repo.commit):
            return repo.commit, repo.files
        return (revision, repo.older[revision]) if revision in repo.older else ("", {})

    def _allowed(self, handler: Handler, name: str, *, is_file: bool) -> Repo | None:
        """None after a refusal, as the Hub words them in headers."""
        token = handler.headers.get("Authorization", "").removeprefix("Bearer ")
        repo = self.repos.get(name)
        if token and token not in self.tokens:
            handler.answer(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repo is None or (repo.is_private and not token):
            handler.answer(404 if token else 401, b"", {"X-Error-Code": "RepoNotFound"})
        elif repo.gate and is_file and token not in repo.accepted:
            handler.answer(403 if token else 401, b"", {"X-Error-Code": "GatedRepo"})
        else:
            return repo
        return None


def _config(repo: Repo) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(Blob(repo.files["config.json"]).bytes())
    return values
