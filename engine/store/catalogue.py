"""The models that people run, from `resources/catalogue.json`: geometry, licence, formats. Judgement is computed elsewhere."""

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Geometry:
    """What decides the bytes of each part; `matrices` of an expert are 2 without a gate.

    Those from `kv_heads` to `max_context` are 0 for architectures that the engine does not run yet.
    """

    layers: int
    moe_layers: int
    experts: int
    top_k: int
    hidden: int
    expert_size: int
    matrices: int = 3
    kv_heads: int = 0
    head_dim: int = 0
    vocab: int = 0
    max_context: int = 0
    window: int = 0  # tokens that `windowed_layers` of them see, where not all
    windowed_layers: int = 0
    compressed: tuple[tuple[int, tuple[int, ...], int, int], ...] = ()  # `Compressed`, and the layers that keep it
    further_layers: int = 0  # that guess further tokens, with as many experts, which are not loaded


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """`releases` are (repository, weight format, bytes of its files); of those in `rough` the bytes are about right."""

    name: str
    architecture: str
    licence: str
    total_params: int
    active_params: int
    geometry: Geometry
    releases: tuple[tuple[str, str, int], ...]
    rough: frozenset[str] = frozenset()


def read_catalogue() -> tuple[CatalogueModel, ...]:
    entries = json.loads(files("resources").joinpath("catalogue.json").read_text(encoding="utf-8"))["models"]
    return tuple(map(_model, entries))


def _model(entry: dict[str, Any]) -> CatalogueModel:
    return CatalogueModel(
        name=entry["name"],
        architecture=entry["architecture"],
        licence=entry["licence"],
        total_params=int(entry["total_b"] * 1e9),
        active_params=int(entry["active_b"] * 1e9),
        geometry=_geometry(entry["geometry"]),
        releases=tuple((item["repo"], item["format"], int(item["gb"] * 1e9)) for item in entry["releases"]),
        rough=frozenset(item["repo"] for item in entry["releases"] if item.get("is_about")),
    )


def _geometry(entry: dict[str, Any]) -> Geometry:
    compressed = tuple((ratio, tuple(widths), top, layers) for ratio, widths, top, layers in entry.get("compressed", ()))
    return Geometry(**entry | {"compressed": compressed})
