"""Layers that see only the last tokens keep only those: rows that move to the front when there is no room behind them.

Positions within the rows are relative, which attention over a window does not see: keys have been turned already. To go back
further than the rows reach takes a mark, which is a copy of one window. Knows rows, no architecture.
"""

from dataclasses import dataclass

import torch

from engine.kv.marks import Marks


@dataclass(eq=False)
class _Layer:
    memory: torch.Tensor  # [parts, H, rows, ...]
    window: int
    first: int = 0  # the token that row 0 holds

    def last(self, length: int) -> torch.Tensor:
        """The rows of the tokens before `length` that the next one sees, oldest first."""
        begin = max(self.first, length - self.window + 1)
        return self.memory[:, :, begin - self.first : length - self.first]

    def put(self, rows: torch.Tensor, length: int) -> None:
        """These rows are now those before `length`, and the only ones."""
        self.memory[:, :, : rows.shape[2]] = rows
        self.first = length - rows.shape[2]

    def reaches(self, length: int) -> bool:
        return self.first <= max(0, length - self.window + 1)


class Windows:
    """Empty until the first pass of a model with such layers."""

    def __init__(self) -> None:
        self._layers: dict[int, _Layer] = {}
        self._marks: Marks[dict[int, torch.Tensor]] = Marks()

    def add(self, layer: int, memory: torch.Tensor, window: int) -> None:
        """A layer that keeps its rows in memory [parts, H, rows, ...], which has room for a window and a pass."""
        self._layers[layer] = _Layer(memory, window)

    def start(self, layer: int, length: int, count: int) -> int:
        """The row of the token after `length`, from which on there is room for `count`. Other layers keep all."""
        own = self._layers.get(layer)
        if own is None:
            return length
        rows = own.memory.shape[2]
        assert own.window + count <= rows + 1, f"{count} tokens do not fit {rows} rows with a window of {own.window}"
        if length - own.first + count > rows:
            own.put(own.last(length).clone(), length)
        return length - own.first

    @torch.inference_mode()
    def mark(self, length: int) -> None:
        """Keep a copy of what the token after `length` sees."""
        if self._layers and self._marks.is_new(length):
            self._marks.add(length, {layer: own.last(length).clone() for layer, own in self._layers.items()})

    def reachable(self, length: int) -> int:
        """The longest timeline within `length` whose last window is there."""
        if all(own.reaches(length) for own in self._layers.values()):
            return length
        return self._marks.before(length)

    @torch.inference_mode()
    def go_back(self, length: int) -> None:
        """To a `reachable` length."""
        self._marks.cut(length)
        if all(own.reaches(length) for own in self._layers.values()):
            return
        kept = self._marks.at(length)
        assert kept is not None or length == 0, f"no mark at {length} tokens"
        for layer, own in self._layers.items():
            own.put(own.memory[:, :, :0] if kept is None else kept[layer], length)
