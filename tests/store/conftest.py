"""A fake hub with one small model, and a computer of one's own for each test."""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from engine.store.patience import Patience, Throttle
from engine.store.web import Access, Line
from tests.hub.server import FakeHub
from tests.store.steps import REPO, Pull


def shard(seed: int, nbytes: int) -> bytes:
    return Random(seed).randbytes(nbytes)


def model_files(shard_bytes: int = 3_000_000) -> dict[str, bytes | Path]:
    """Two shards with their index, what belongs to them, and what a person should not have to wait for."""
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    return {
        "config.json": json.dumps({"model_type": "mixtral"}).encode(),
        "generation_config.json": b"{}",
        "tokenizer.json": shard(7, 20_000),
        "tokenizer_config.json": b"{}",
        "model.safetensors.index.json": json.dumps({"weight_map": {"a": names[0], "b": names[1]}}).encode(),
        names[0]: shard(1, shard_bytes + 1234),
        names[1]: shard(2, shard_bytes),
        "pytorch_model.bin": shard(3, 9000),
        "model-Q4_K_M.gguf": shard(4, 9000),
        "consolidated.safetensors": shard(5, 9000),
        "original/consolidated.00.pth": shard(6, 9000),
        "README.md": b"# A model",
        ".gitattributes": b"",
    }  # fmt: skip


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add(REPO, model_files())
        yield hub


@pytest.fixture(autouse=True)
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stoker's data and the Hugging Face cache below `tmp_path`; nothing of the real ones is read."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    return tmp_path


@pytest.fixture
def line(hub: FakeHub) -> Line:
    """Patient as the product, ten to a hundred times as fast."""
    return line_to(hub)


def line_to(hub: FakeHub, token: str | None = None, connections: int = 4, limit: int = 0) -> Line:
    patience = Patience(stall_seconds=0.5, retries=4, first_wait_seconds=0.3, longest_wait_seconds=0.3)
    return Line(Access(hub.endpoint, token), ssl.create_default_context(), patience, Throttle(limit), connections)


@pytest.fixture
def pull(line: Line, computer: Path) -> Pull:
    """Of the small model, into the Hugging Face cache."""
    return Pull(line, computer / "data")
