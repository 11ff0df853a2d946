"""Keys and values of the tokens read so far, per layer. Knows positions, no architecture."""

import math

import torch

from engine.tiers.arena import aligned_memory


class KvCache:
    """Fixed capacity in tokens; `length` of them are valid. Rows beyond `length` may hold the pass in progress.

    Raises `EngineError` when the system refuses the memory.
    """

    def __init__(self, num_layers: int, num_kv_heads: int, head_dim: int, capacity: int) -> None:
        shape = (num_layers, num_kv_heads, capacity, head_dim)
        self._keys, self._values = _memory(shape), _memory(shape)
        self.capacity = capacity
        self.length = 0

    def layer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [Hkv, capacity, D] of one layer; a pass writes its rows after `length`."""
        return self._keys[layer], self._values[layer]

    def advance(self, count: int) -> None:
        """The pass over `count` tokens is complete in every layer."""
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens."""
        assert 0 <= length <= self.length
        self.length = length

    @property
    def bytes_per_token(self) -> int:
        layers, heads, _, dim = self._keys.shape
        return 2 * layers * heads * dim * self._keys.itemsize


def _memory(shape: tuple[int, ...]) -> torch.Tensor:
    """fp32; costs nothing until a token is written. Raises `EngineError` when the system refuses it."""
    return torch.frombuffer(aligned_memory(math.prod(shape) * 4), dtype=torch.float32).view(shape)
