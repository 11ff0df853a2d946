"""What recurrent layers remember of all tokens so far: tensors of a fixed size, which cannot be cut short like a KV cache.

A pass reads what is and writes what will be, and `commit` exchanges the two, so that a pass given up half way leaves no trace.
`mark` keeps a copy to go back to; what follows it is then read again. Knows lengths, no architecture.
"""

import torch

from engine.kv.marks import Marks

Tensors = tuple[torch.Tensor, ...]


class States:
    """Empty until the first pass of a model with such layers."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device
        self._now: dict[int, Tensors] = {}
        self._next: dict[int, Tensors] = {}
        self._marks: Marks[dict[int, Tensors]] = Marks()

    def of(self, layer: int, *shapes: tuple[int, ...]) -> tuple[Tensors, Tensors]:
        """A layer's tensors as they are, zeros at first, and those that the pass must fill with what they become. fp32."""
        if layer not in self._now:
            self._now[layer] = tuple(torch.zeros(shape, device=self._device) for shape in shapes)
            self._next[layer] = tuple(torch.zeros(shape, device=self._device) for shape in shapes)
        return self._now[layer], self._next[layer]

    def commit(self) -> None:
        """The pass is complete in every layer."""
        self._now, self._next = self._next, self._now

    @torch.inference_mode()
    def mark(self, length: int) -> None:
        """Keep a copy of the present state, which is that after `length` tokens."""
        if self._now and self._marks.is_new(length):
            copies = {layer: tuple(part.clone() for part in parts) for layer, parts in self._now.items()}
            self._marks.add(length, copies)

    def reachable(self, length: int, present: int) -> int:
        """The longest timeline within `length` tokens that the state can be of without reading; `present` is today's."""
        if not self._now or length >= present:
            return min(length, present)
        return self._marks.before(length)

    @torch.inference_mode()
    def go_back(self, length: int) -> None:
        """To a `reachable` length other than the present one."""
        if not self._now:
            return
        self._marks.cut(length)
        kept = self._marks.at(length)
        assert kept is not None or length == 0, f"no mark at {length} tokens"
        for layer, parts in self._now.items():
            for index, part in enumerate(parts):
                part.zero_() if kept is None else part.copy_(kept[layer][index])
