"""Which expert leaves when another must come in: least recently used, per layer. Integers only; no tensors, no devices."""

from collections.abc import Collection
from typing import Protocol


class Policy(Protocol):
    """Decides victims. It owns no slots: the cache tells it what is resident, and it answers with an expert of that layer.

    `touch` and `drop` may change its state, `victim` must not.
    """

    def touch(self, layer: int, expert: int) -> None:
        """The expert was used, or has just come in."""

    def drop(self, layer: int, expert: int) -> None:
        """The expert is no longer resident."""

    def victim(self, layer: int, keep: Collection[int]) -> int | None:
        """The resident expert of this layer that should leave next and is not in `keep`; None if all are to be kept."""


class LayerLru:
    """Least recently used within each layer.

    Per layer, since a global LRU that holds less than one token's demand (layers × top-k) never hits at all.
    """

    def __init__(self) -> None:
        self._order: dict[int, dict[int, None]] = {}  # per layer, oldest first

    def touch(self, layer: int, expert: int) -> None:
        order = self._order.setdefault(layer, {})
        order.pop(expert, None)
        order[expert] = None

    def drop(self, layer: int, expert: int) -> None:
        self._order.get(layer, {}).pop(expert, None)

    def victim(self, layer: int, keep: Collection[int]) -> int | None:
        return next((expert for expert in self._order.get(layer, ()) if expert not in keep), None)
