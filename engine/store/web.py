"""Ranges of a file behind a URL, over HTTP/1.1. Knows proxies, redirects and what each status means for a person.

Why not the client that huggingface_hub uses: it takes 0.9 s of a core for each GB, urllib3 0.4, http.client 0.2, about as much
as curl (measured on loopback); and the socket must be in reach, so that a watchdog can end a read that hangs.
"""

import contextlib
import http.client
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from engine.errors import EngineError
from engine.store.patience import Patience, Throttle

_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 8
_AGENT = "stoker"


class TransientError(Exception):
    """Trying again may help. `reason` goes on after "because"; `wait_seconds` is what the server asked for."""

    def __init__(self, reason: str, wait_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.wait_seconds = reason, wait_seconds


class StoppedError(Exception):
    """Told to stop; what has arrived is kept."""


class StaleLinkError(TransientError):
    """The address behind a redirect no longer works: follow the first one again."""


@dataclass(frozen=True, slots=True)
class Access:
    """Where the Hub is and who asks. The token goes to this endpoint alone, never to a host it redirects to."""

    endpoint: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Line:
    """How to reach the servers; made once for all files of a job."""

    access: Access
    tls: ssl.SSLContext
    patience: Patience
    throttle: Throttle
    connections: int = 4
    tell: Callable[[str], None] = field(default=lambda _: None, repr=False, compare=False)  # what it waits for, for a person

    def connect(self) -> "Connection":
        return Connection(self.access, self.patience.stall_seconds, self.tls)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server sends: bytes from `first` on of a file of `size` (None: it did not say)."""

    first: int
    size: int | None
    etag: str  # a strong one, else empty
    is_whole: bool  # status 200: the range was not honoured
    is_page: bool  # text/html
    url: str  # after redirects


class Connection:
    """One connection, used for one range after another. `abort` may be called from any thread and ends a blocked read."""

    def __init__(self, access: Access, timeout_seconds: float, tls: ssl.SSLContext) -> None:
        self._access, self._timeout, self._tls = access, timeout_seconds, tls
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None  # http.client lets go of it once an answer says that it is the last
        self._response: http.client.HTTPResponse | None = None
        self._host = ("", "")
        self._is_aborted = False

    def open(self, url: str, first: int, end: int, etag: str = "") -> Answer:
        """Ask for `[first, end)`, of that `etag` only. Raises `TransientError`, or `EngineError` where that is final."""
        for _ in range(_MOST_REDIRECTS):
            response = self._request(url, first, end, etag)
            if response.status not in _REDIRECTS:
                break
            location = response.headers.get("Location", "")
            response.read()
            url = urljoin(url, location)
        else:
            raise TransientError("the server redirects in a circle")
        if response.status not in (200, 206):
            self._refuse(url, response)
        self._response = response
        return _answer(url, response)

    def read_into(self, view: memoryview) -> int:
        """Fill `view`; less, or 0, only where the answer ends. Raises `TransientError`."""
        assert self._response is not None, "read before open"
        try:
            return self._response.readinto(view)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:  # the last two: closed meanwhile
            raise TransientError(_reason(error, self._timeout)) from error

    def abort(self) -> None:
        self._is_aborted = True
        self._shut()

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self._response = self._connection = self._socket = None

    def _shut(self) -> None:
        if (sock := self._socket) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, which is not safe from two threads

    def _request(self, url: str, first: int, end: int, etag: str) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TransientError("the server redirects to an address that is none")
        headers = {"User-Agent": _AGENT, "Accept-Encoding": "identity", "Range": f"bytes={first}-{end - 1}"}
        if etag:
            headers["If-Range"] = etag
        if self._access.token and _origin(url) == _origin(self._access.endpoint):
            headers["Authorization"] = f"Bearer {self._access.token}"
        proxy = _proxy_for(parts.scheme, parts.netloc.rpartition("@")[2], parts.hostname)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        if proxy and parts.scheme == "http":
            path, headers = url, headers | _proxy_login(proxy)
        for is_second_try in (False, True):  # a kept connection may have been closed by the server meanwhile
            is_kept = self._host == (parts.scheme, parts.netloc) and self._connection is not None
            try:
                connection = self._connected(parts.scheme, parts.netloc, proxy)
                connection.request("GET", path, headers=headers)
                return connection.getresponse()
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
                self.close()
                if not is_kept or is_second_try or self._is_aborted or isinstance(error, TimeoutError):
                    raise TransientError(_reason(error, self._timeout)) from error
        raise AssertionError("unreachable")

    def _connected(self, scheme: str, netloc: str, proxy: str) -> http.client.HTTPConnection:
        """The connection there is where it leads to that host and has been read to its end, else a new one."""
        is_idle = self._response is None or self._response.isclosed()
        if self._connection is not None and self._host == (scheme, netloc) and is_idle:
            return self._connection
        self.close()
        through = urlsplit(proxy) if proxy else urlsplit(f"{scheme}://{netloc}")
        host, port = through.hostname or "", through.port
        if scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=self._timeout, context=self._tls
            )
            if proxy:
                connection.set_tunnel(netloc, headers=_proxy_login(proxy))
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        self._connection, self._host = connection, (scheme, netloc)
        connection.connect()
        self._socket = connection.sock
        if self._is_aborted:
            self._shut()
        return connection

    def _refuse(self, url: str, response: http.client.HTTPResponse) -> None:
        status, headers = response.status, response.headers
        wait = wait_seconds_of(headers.get("Retry-After", ""))
        self.close()
        if status == 429:
            raise TransientError("the server has had too many requests from here (429)", wait)
        if status >= 500 or status == 408:
            raise TransientError(f"the server is in trouble ({status})", wait)
        if status == 416:
            raise TransientError("the server has another size for the file (416)")
        if _origin(url) != _origin(self._access.endpoint):
            raise StaleLinkError(f"the storage server refused ({status})")
        raise refusal(status, headers.get("X-Error-Code", ""), bool(self._access.token), urlsplit(url).path)


def read_piece(line: Line, url: str, size: int, first: int, end: int) -> bytes:
    """`[first, end)` of a file of `size` bytes into memory. Raises `TransientError` or `EngineError`."""
    content = bytearray(end - first)
    connection = line.connect()
    try:
        answer = connection.open(url, first, end)
        is_right = not answer.is_page and answer.size in (None, size) and answer.first == first
        if not is_right or connection.read_into(memoryview(content)) < len(content):
            raise TransientError("a web page or a part came in place of its answer")
    finally:
        connection.close()
    return bytes(content)


def refusal(status: int, code: str, has_token: bool, path: str) -> EngineError:
    """The sentence for a status with which the Hub refuses a file or a repository."""
    repo = path.strip("/").removeprefix("api/models/").split("/resolve/")[0].split("/revision/")[0]
    name = unquote(path.rpartition("/")[2])
    if code == "GatedRepo":
        text = f"{repo} is given only to those who accept its terms (403)."
        hint = f"Accept them at https://huggingface.co/{repo}, then resume."
        if not has_token:
            text = f"{repo} is given only to those who sign in and accept its terms (401)."
            hint = f"Accept them at https://huggingface.co/{repo}, sign in, then resume."
        return EngineError("hub.gated", text, hint)
    if code == "RevisionNotFound":
        return EngineError("hub.no_revision", f"{repo} has no such revision (404).", "Leave the revision out, or check it.")
    if code == "EntryNotFound" or (status == 404 and "/resolve/" in path and code != "RepoNotFound"):
        return EngineError("hub.no_file", f"{repo} has no file {name} (404).", "Ask again: its files may have changed.")
    if status == 403 and not code:
        text = f"The Hub does not let this access token read {repo} (403)."
        return EngineError("hub.forbidden", text, f"Give the token the right to read it, or see https://huggingface.co/{repo}.")
    if status == 401 and has_token and code != "RepoNotFound":
        return EngineError("hub.bad_token", f"The Hub refuses the access token for {repo} (401).", "Enter a new token.")
    if code == "RepoNotFound" or status in (401, 404):
        hint = "Check the name." if has_token else "Check the name. If it is private, sign in."
        return EngineError("hub.no_repo", f"There is no model {repo} on the Hub, or it is private ({status}).", hint)
    return EngineError("hub.refused", f"The Hub refuses {name} of {repo} (status {status}).", "Try again later.")


def tls_context() -> ssl.SSLContext:
    """Trusts what huggingface_hub trusts: the system's certificates, or SSL_CERT_FILE. Takes a while: make one."""
    return httpx2.create_ssl_context()


def _answer(url: str, response: http.client.HTTPResponse) -> Answer:
    headers = response.headers
    length = headers.get("Content-Length", "")
    first, size = 0, int(length) if length.isdecimal() else None
    if response.status == 206:
        span, _, total = headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
        begin = span.partition("-")[0]
        if not begin.isdecimal():
            raise TransientError("the server does not say which bytes it sends")
        first, size = int(begin), int(total) if total.isdecimal() else None
    etag = headers.get("ETag", "")
    kind = headers.get_content_type()
    return Answer(first, size, "" if etag.startswith("W/") else etag, response.status == 200, kind == "text/html", url)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _proxy_for(scheme: str, netloc: str, host: str) -> str:
    """The proxy that the environment or the system names; empty for none. Raises `EngineError` for one that cannot be used."""
    proxies = getproxies()
    proxy = proxies.get(scheme) or proxies.get("all") or ""
    if not proxy or proxy_bypass(netloc) or proxy_bypass(host):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if urlsplit(proxy).scheme != "http":
        kind = urlsplit(proxy).scheme
        raise EngineError("hub.proxy", f"The proxy is of the kind {kind}, which Stoker does not speak.", "Use an HTTP proxy.")
    return proxy


def _proxy_login(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}


def wait_seconds_of(retry_after: str) -> float:
    """Seconds or a date; at most ten minutes, whatever the server says."""
    if retry_after.isdecimal():
        return min(600.0, float(retry_after))
    try:
        return min(600.0, max(0.0, parsedate_to_datetime(retry_after).timestamp() - time()))
    except ValueError:
        return 0.0


def _reason(error: Exception, timeout_seconds: float) -> str:
    """In plain words, and never with an address that holds a signature."""
    if isinstance(error, TimeoutError):
        return f"nothing came for {timeout_seconds:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message})"
    if isinstance(error, socket.gaierror):
        return "the server's name cannot be found, perhaps because this computer is not online"
    if isinstance(error, ConnectionRefusedError):
        return "the server takes no connections"
    return f"the connection broke ({type(error).__name__})"
