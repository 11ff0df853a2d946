"""The KV cache as a token meets it whose every shape is known beforehand: where it stands is a number on the device."""

from typing import Any

import torch

from engine.kernels.spec import Start
from engine.kv.cache import Kept, KvCache


class NotFixed(Exception):  # noqa: N818 - a fact about a model, not an error
    """A layer asks for what has no fixed shape: states that alternate, parts whose number grows."""


class FixedKv:
    """In place of a `KvCache` for single tokens, where layers keep rows of each token and nothing else.

    A layer gets its first `reach` rows at most, and as its `Start` a tensor on the device.
    `aim` before each token but the first. Whatever else is asked for raises `NotFixed`.
    """

    def __init__(self, kv: KvCache, reach: int) -> None:
        self._kv, self._reach = kv, reach
        self._starts = torch.zeros(kv.num_layers, dtype=torch.int64, device=kv.device)
        self._asked: dict[int, tuple[int, ...] | None] = {}  # by layers, of what shape; None for `rows`

    def aim(self) -> None:
        """At the token after what the cache holds."""
        starts: list[Start] = [0] * self._kv.num_layers
        for layer, shape in self._asked.items():
            starts[layer] = self._kv.rows(layer, 1)[-1] if shape is None else self._kv.layer(layer, 1, *shape)[-1]
        self._starts.copy_(torch.tensor(starts))

    def layer(self, layer: int, count: int, num_kv_heads: int = 0, head_dim: int = 0) -> Kept:
        """As `KvCache.layer`."""
        keys, values, start = self._kv.layer(layer, count, num_kv_heads, head_dim)
        return self._reached(layer, keys), self._reached(layer, values), self._start(layer, start, (num_kv_heads, head_dim))

    def rows(self, layer: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """As `KvCache.rows`."""
        rows, start = self._kv.rows(layer, count)
        return self._reached(layer, rows), self._start(layer, start, None)

    def __getattr__(self, name: str) -> Any:
        raise NotFixed(name)

    def _reached(self, layer: int, rows: torch.Tensor) -> torch.Tensor:
        return rows if self._kv.is_windowed(layer) else rows[:, : self._reach]

    def _start(self, layer: int, start: Start, shape: tuple[int, ...] | None) -> torch.Tensor:
        own = self._starts[layer : layer + 1]
        if layer not in self._asked:  # before that `aim` does not know of it
            self._asked[layer] = shape
            own.fill_(start)
        return own
