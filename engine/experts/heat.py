"""The heat of a model's experts between two runs: a small JSON file for a warm start, which never stands in the way of one."""

import heapq
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.experts.policy import Expert

_VERSION = 1


def hottest(heat: Mapping[Expert, float], limit: int) -> list[Expert]:
    """At most `limit` experts, the hottest first."""
    return heapq.nsmallest(limit, heat, key=lambda expert: (-heat[expert], expert))


def save_heat(path: Path, heat: Mapping[Expert, float], misses: Any = None) -> bool:
    """Replace the file as a whole; the old one stays where that fails, and the answer is False.

    `misses` is what `MissPath.kept` gave, where there was a choice of lanes.
    """
    layers: dict[str, dict[str, float]] = {}
    for (layer, expert), value in heat.items():
        layers.setdefault(str(layer), {})[str(expert)] = float(f"{value:.4g}")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"version": _VERSION, "heat": layers, "misses": misses}
        partial.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        return False
    return True


def load_heat(path: Path, layers: Sequence[int], num_experts: int) -> dict[Expert, float]:
    """What `save_heat` wrote; empty where the file is absent, damaged or of another model, for a cold start always works."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            return {}
        heat = {
            (int(layer), int(expert)): float(value)
            for layer, experts in document["heat"].items()
            for expert, value in experts.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return {}
    is_ours = all(
        layer in layers and 0 <= expert < num_experts and math.isfinite(value) and value >= 0
        for (layer, expert), value in heat.items()
    )
    return heat if is_ours else {}


def load_misses(path: Path) -> Any:
    """The miss path's part of it; None where there is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["misses"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
