"""A repository as data, and which of its files make a model that the engine can load; everything else is left on the Hub."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from engine.errors import EngineError
from engine.protocol import Gate

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_WANTED = frozenset(
    {
        CONFIG, "generation_config.json", "hf_quant_config.json", "quant_config.json", "quantize_config.json",
        "quantization_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "tokenizer.model", "tekken.json", "tiktoken.model",
        "chat_template.jinja", "chat_template.json", INDEX,
    }
)  # fmt: skip
_NUMBERED = re.compile(r"(.*)-\d+-of-(\d+)\.safetensors")
_OTHER_FORMATS = (".gguf", ".bin", ".pth", ".pt", ".onnx", ".msgpack", ".h5")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`checksum` is "sha256:…", "git-sha1:…", or empty where the Hub lists none."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Repository:
    """One revision of a repository, pinned to its commit, and the files of it that make a model."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]
    licence: str
    gate: Gate = Gate.OPEN

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    def url(self, endpoint: str, file: RemoteFile) -> str:
        return f"{endpoint}/{self.repo}/resolve/{self.commit}/{quote(file.name)}"


def choose_files(repo: str, names: Iterable[str], indexed: Iterable[str] | None = None) -> list[str]:
    """The files to bring, small ones first. `indexed` are the weight files that the index of the repository names.

    Raises `EngineError` where the repository has no weights in safetensors, or lacks what its index names.
    """
    top = {name for name in names if is_plain(name)}
    weights = _indexed(repo, top, set(indexed)) if indexed is not None else _weights(repo, top)
    if CONFIG not in top:
        raise EngineError("hub.no_model", f"{repo} has no {CONFIG}, so it is no model.", "Choose another repository.")
    return sorted(top & _WANTED) + sorted(weights)


def is_plain(name: str) -> bool:
    """A file in the repository's own folder, with a name that every file system takes as it is."""
    return (
        bool(name) and name not in (".", "..") and not re.search(r'[/\\:*?"<>|\x00-\x1f]', name) and len(name.encode()) <= 240
    )


def _indexed(repo: str, top: set[str], indexed: set[str]) -> set[str]:
    if missing := sorted(indexed - top):
        raise EngineError(
            "hub.incomplete",
            f"{repo} lacks {len(missing)} of the {len(indexed)} weight files that its index names, first {missing[0]}.",
            "Its upload may not be finished: try again later, or choose another repository.",
        )
    return indexed


def has_whole_set(names: Iterable[str]) -> bool:
    """Numbered weight files of which none is missing, and no others of their kind."""
    return len(_whole_sets({name for name in names if is_plain(name)})) == 1


def _whole_sets(top: set[str]) -> dict[str, set[str]]:
    """By what stands before the numbers."""
    sets: dict[tuple[str, int], set[str]] = defaultdict(set)
    for name in top:
        if match := _NUMBERED.fullmatch(name):
            sets[match[1], int(match[2])].add(name)
    return {stem: found for (stem, total), found in sets.items() if len(found) == total}


def _weights(repo: str, top: set[str]) -> set[str]:
    """Without an index: `model.safetensors`, or the numbered set that is there as a whole."""
    if "model.safetensors" in top:
        return {"model.safetensors"}
    whole = _whole_sets(top)
    for stem in sorted(whole, key=lambda stem: (not stem.startswith("model"), stem)):
        return whole[stem]
    single = [name for name in top if name.endswith(".safetensors")]
    if len(single) == 1:
        return set(single)
    other = next((name for name in sorted(top) if name.endswith(_OTHER_FORMATS)), None)
    reason = f"weights only in another format, such as {other}" if other else "no weights in safetensors"
    raise EngineError(
        "hub.format", f"{repo} has {reason}.", "Look for the release in safetensors, often by the model's makers."
    )
