"""What recurrent layers remember of all tokens so far: tensors of a fixed size, which cannot be cut short like a KV cache.

A pass reads what is and writes what will be, and `commit` exchanges the two, so that a pass given up half way leaves no trace.
`mark` keeps a copy to go back to; what follows it is then read again. Knows lengths, no architecture.
"""

import torch

MARKS = 4  # copies kept: a state is some 60 MB in Qwen3.6-35B-A3B

Tensors = tuple[torch.Tensor, ...]


class States:
    """Empty until the first pass of a model with such layers."""

    def __init__(self) -> None:
        self._now: dict[int, Tensors] = {}
        self._next: dict[int, Tensors] = {}
        self._marks: list[tuple[int, dict[int, Tensors]]] = []  # by length, the shortest first

    def of(self, layer: int, *shapes: tuple[int, ...]) -> tuple[Tensors, Tensors]:
        """A layer's tensors as they are, zeros at first, and those that the pass must fill with what they become. fp32."""
        if layer not in self._now:
            self._now[layer] = tuple(torch.zeros(shape) for shape in shapes)
            self._next[layer] = tuple(torch.zeros(shape) for shape in shapes)
        return self._now[layer], self._next[layer]

    def commit(self) -> None:
        """The pass is complete in every layer."""
        self._now, self._next = self._next, self._now

    @torch.inference_mode()
    def mark(self, length: int) -> None:
        """Keep a copy of the present state, which is that after `length` tokens."""
        if not self._now or (self._marks and self._marks[-1][0] >= length):
            return
        self._marks.append((length, {layer: tuple(part.clone() for part in parts) for layer, parts in self._now.items()}))
        if len(self._marks) > MARKS:
            del self._marks[self._least_useful()]

    def _least_useful(self) -> int:
        """The mark whose loss adds least to what must be read again, for its distance: marks lie denser towards the end."""
        lengths = [0, *(length for length, _ in self._marks)]
        costs = [(lengths[i + 1] - lengths[i - 1]) / (lengths[-1] - lengths[i]) for i in range(1, len(lengths) - 1)]
        return costs.index(min(costs))

    def reachable(self, length: int, present: int) -> int:
        """The longest timeline within `length` tokens that the state can be of without reading; `present` is today's."""
        if not self._now or length >= present:
            return min(length, present)
        return max((marked for marked, _ in self._marks if marked <= length), default=0)

    @torch.inference_mode()
    def go_back(self, length: int) -> None:
        """To a `reachable` length other than the present one."""
        if not self._now:
            return
        self._marks = [mark for mark in self._marks if mark[0] <= length]
        kept = self._marks[-1][1] if self._marks and self._marks[-1][0] == length else {}
        assert kept or length == 0, f"no mark at {length} tokens"
        for layer, parts in self._now.items():
            for index, part in enumerate(parts):
                part.copy_(kept[layer][index]) if kept else part.zero_()
