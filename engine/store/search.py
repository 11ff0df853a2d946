"""Finds models on the Hub and reads what their makers say of them. Brings no weights and judges nothing."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from huggingface_hub.hf_api import ModelInfo
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

from engine.checkpoint.safetensors import DTYPE_BITS
from engine.errors import EngineError
from engine.protocol import HubModel, HubSort, Release
from engine.store.files import RemoteFile, Repository
from engine.store.formats import format_name
from engine.store.hub import check_repo_name, gate_of, licence_of, patiently
from engine.store.web import Line, TransientError

_MOST = 40  # of each architecture
_WANTED = ["safetensors", "config", "gated", "cardData", "downloads", "likes", "lastModified", "trendingScore"]
_CARD_BYTES = 200_000
_CARD_CHARACTERS = 40_000
_SORT_KEYS: dict[HubSort, Callable[[Any], Any]] = {
    HubSort.DOWNLOADS: lambda info: info.downloads or 0,
    HubSort.LIKES: lambda info: info.likes or 0,
    HubSort.TRENDING: lambda info: info.trending_score or 0,
    HubSort.UPDATED: lambda info: info.last_modified.timestamp() if info.last_modified else 0.0,
}


def search(
    line: Line, text: str, sort: HubSort, architectures: frozenset[str], is_stopped: Callable[[], bool] = lambda: False
) -> tuple[HubModel, ...]:
    """In safetensors, of these architectures (none given: of any). Raises `EngineError` or `StoppedError`."""

    def ask(architecture: str) -> list[ModelInfo]:
        tags = ["safetensors", *filter(None, [architecture])]
        query: dict[str, Any] = {"filter": tags, "sort": sort.value, "limit": _MOST, "expand": _WANTED}
        headers = build_hf_headers(token=line.access.token or False)
        # Not by HfApi.list_models, which tries for half a minute where there is no network.
        answer = get_session().get(
            f"{line.access.endpoint}/api/models", params=query | ({"search": text.strip()} if text.strip() else {}),
            headers=headers, timeout=line.patience.stall_seconds,
        )  # fmt: skip
        hf_raise_for_status(answer)
        entries = answer.json()
        if not isinstance(entries, list):
            raise ValueError("no list of models")
        return [ModelInfo(**{"siblings": None} | item) for item in entries[:_MOST]]  # type: ignore[no-untyped-call]

    found: dict[str, Any] = {}
    for architecture in sorted(architectures) or [""]:
        for info in patiently(partial(ask, architecture), line, repr(text), is_stopped):
            found.setdefault(info.id, info)
    models = sorted(found.values(), key=_SORT_KEYS[sort], reverse=True)
    return tuple(_model(info) for info in models)


def _model(info: Any) -> HubModel:
    config, weights = info.config or {}, info.safetensors
    counts: dict[str, int] = dict(weights.parameters) if weights is not None else {}
    nbytes = {dtype: count * DTYPE_BITS.get(dtype, 16) // 8 for dtype, count in counts.items()}
    release = Release(info.id, format_name(nbytes, config), sum(nbytes.values()))
    is_packed = any(dtype in ("U8", "I8", "I32") for dtype in counts)  # then the Hub counts numbers, not parameters
    return HubModel(
        name=info.id.split("/")[-1],
        architecture=str(config.get("model_type") or ""),
        releases=(release,),
        licence=licence_of(info),
        gate=gate_of(info),
        total_params=0 if is_packed else sum(counts.values()),
        downloads=info.downloads or 0,
        likes=info.likes or 0,
    )


def read_card(line: Line, repo: str, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """README.md as Markdown without HTML and pictures; empty where there is none. Raises `EngineError` or `StoppedError`."""
    url = Repository(check_repo_name(repo), "main", (), "").url(line.access.endpoint, RemoteFile("README.md", 0, ""))
    try:
        content = patiently(lambda: _beginning(line, url), line, repo, is_stopped)
    except EngineError as error:
        if error.code == "hub.no_file":
            return ""
        raise
    return plain_card(content.decode(errors="replace"))


def _beginning(line: Line, url: str) -> bytes:
    connection = line.connect()
    try:
        answer = connection.open(url, 0, _CARD_BYTES)
        if answer.is_page:
            raise TransientError("a web page came in place of its answer")
        content = bytearray(min(_CARD_BYTES, answer.size or _CARD_BYTES))
        return bytes(content[: connection.read_into(memoryview(content))])
    finally:
        connection.close()


def plain_card(text: str) -> str:
    """Without the YAML before it, HTML, pictures and badges; code stays as it is."""
    text = re.sub(r"\A\s*---\r?\n.*?\r?\n---\r?\n", "", text, flags=re.DOTALL)
    pieces = re.split(r"(^```.*?^```[^\S\n]*$)", text, flags=re.DOTALL | re.MULTILINE)
    pieces[::2] = [_without_html(piece) for piece in pieces[::2]]
    joined = re.sub(r"\n{3,}", "\n\n", "".join(pieces)).strip()
    if len(joined) <= _CARD_CHARACTERS:
        return joined
    return f"{joined[:_CARD_CHARACTERS].rpartition(chr(10))[0]}\n\n*The card goes on at huggingface.co.*"


def _without_html(text: str) -> str:
    text = re.sub(r"<!--.*?-->|<(script|style|svg)\b.*?</\1>", "", text, flags=re.DOTALL | re.IGNORECASE)
    text = re.sub(r"\[?!\[[^\]]*\]\([^)]*\)(\]\([^)]*\))?", "", text)
    text = re.sub(r"<a\b[^>]*href=[\"']([^\"']+)[\"'][^>]*>\s*([^<>]*?\S)\s*</a>", r"[\2](\1)", text, flags=re.IGNORECASE)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", "", text)
    return re.sub(r"^[ \t]+(?=\n|$)", "", text, flags=re.MULTILINE)
