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

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [T, Hkv, D] after `length`; returns both for all length + T positions, [Hkv, S, D]."""
        end = self.length + len(keys)
        assert end <= self.capacity, f"{end} tokens do not fit a KV cache of {self.capacity}"
        self._keys[layer, :, self.length : end] = keys.transpose(0, 1)
        self._values[layer, :, self.length : end] = values.transpose(0, 1)
        return self._keys[layer, :, :end], self._values[layer, :, :end]

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
