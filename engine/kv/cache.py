"""What is kept of the tokens read so far, per layer. Knows positions, no architecture."""

import math

import torch

from engine.kv.state import MARKS, States, Tensors
from engine.tiers.arena import aligned_memory


class KvCache:
    """Fixed capacity in tokens; `length` of them are valid. Rows beyond `length` may hold the pass in progress.

    Raises `EngineError` when the system refuses the memory.
    """

    def __init__(
        self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int, device: torch.device | None = None
    ) -> None:
        self._memory = _memory((num_layers, 2, num_kv_heads, capacity, head_dim), device or torch.device("cpu"))
        self._states = States()
        self._used: set[int] = set()  # layers that keep something of each token
        self.capacity = capacity
        self.length = 0

    def layer(self, layer: int, num_kv_heads: int = 0, head_dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [Hkv, capacity, D] of one layer; a pass writes its rows after `length`.

        A layer whose heads are others names them, and takes as much of the memory as they need.
        """
        self._used.add(layer)
        memory = self._memory[layer]
        if num_kv_heads:
            shape = (2, num_kv_heads, self.capacity, head_dim)
            memory = memory.view(-1)[: math.prod(shape)].view(shape)
        return memory[0], memory[1]

    def rows(self, layer: int) -> torch.Tensor:
        """The same memory as one row [capacity, 2 * Hkv * D] per token, for a layer that has no keys and values apart."""
        self._used.add(layer)
        return self._memory[layer].view(self.capacity, -1)

    def state(self, layer: int, *shapes: tuple[int, ...]) -> tuple[Tensors, Tensors]:
        """Of a recurrent layer: its tensors, to be read, and those that the pass must fill. See `States`."""
        return self._states.of(layer, *shapes)

    def advance(self, count: int) -> None:
        """The pass over `count` tokens is complete in every layer."""
        self.length += count
        self._states.commit()

    def mark(self) -> None:
        """Make the present length one that `truncate` reaches. Nothing to do where no layer is recurrent."""
        self._states.mark(self.length)

    def reachable(self, length: int) -> int:
        """What `truncate(length)` will leave."""
        return self._states.reachable(length, self.length)

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens, or after fewer where recurrent layers hold no state of them."""
        assert 0 <= length <= self.length
        if (reached := self.reachable(length)) != self.length:
            self._states.go_back(reached)
        self.length = reached

    @staticmethod
    def state_bytes(values: int) -> int:
        """Memory for recurrent layers that remember so many numbers, with what is kept to go back to."""
        return (2 + MARKS) * values * 4

    @property
    def bytes_per_token(self) -> int:
        """In the layers that keep any."""
        _, two, heads, _, dim = self._memory.shape
        return two * len(self._used) * heads * dim * self._memory.itemsize


def _memory(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """fp32; in RAM it costs nothing until a token is written. Raises `EngineError` when the system refuses it."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device)
    return torch.frombuffer(aligned_memory(math.prod(shape) * 4), dtype=torch.float32).view(shape)
