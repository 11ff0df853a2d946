"""What is kept of the tokens read so far, per layer. Knows positions, no architecture."""

import math
from collections.abc import Sequence

import torch

from engine.config import KvType
from engine.kernels.kept import DTYPES, width
from engine.kernels.spec import Start
from engine.kv.state import States, Tensors
from engine.kv.window import Windows
from engine.plan.footprint import MARKS, Compressed, rows_kept
from engine.tiers.arena import aligned_memory

Kept = tuple[torch.Tensor, torch.Tensor, Start]  # keys and values [Hkv, rows, ...], and the row of the first new token


class KvCache:
    """Fixed capacity in tokens; `length` of them are valid. Rows beyond those may hold the pass in progress.

    `windows` has for each layer how many tokens it sees, None for all; no pass is over more than `chunk` tokens. `compressed`
    has for each layer what it keeps of several tokens at once. Raises `EngineError` when the system refuses the memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        device: torch.device | None = None,
        kv_type: KvType = KvType.FP32,
        windows: Sequence[int | None] = (),
        chunk: int = 0,
        compressed: Sequence[Compressed | None] = (),
    ) -> None:
        self.num_layers, self.device = num_layers, device or torch.device("cpu")
        self._heads, self._dim, self._type = num_kv_heads, head_dim, kv_type
        self._sees = tuple(windows) or (None,) * num_layers
        self._rows = [capacity if window is None else rows_kept(window, capacity, chunk) for window in self._sees]
        self._further = {layer: kept for layer, kept in enumerate(compressed) if kept is not None}
        sizes = [self._token_bytes * rows for rows in self._rows]
        sizes += [kept.nbytes(capacity, kv_type) for kept in self._further.values()]
        self._memory = _memory(sizes, self.device)
        self._compressed = {
            layer: _parted(memory, kept, capacity, DTYPES[kv_type])
            for memory, (layer, kept) in zip(self._memory[len(self._rows) :], self._further.items(), strict=True)
        }
        self._layers: dict[int, tuple[torch.Tensor, ...]] = {}  # those that keep something of each token: [H, rows, ...]
        self._reads: dict[int, int] = {}  # rows of the first kind for a token, of layers with several kinds
        self._windows, self._states = Windows(), States(device)
        self.capacity = capacity
        self.length = 0

    def layer(self, layer: int, count: int, num_kv_heads: int = 0, head_dim: int = 0) -> Kept:
        """Keys and values of one layer as `engine.kernels.kept` has them, and the row of the first of `count` new tokens.

        A layer whose heads are others names them, and takes as much of the memory as they need.
        """
        memory = self._of(layer, 2, num_kv_heads or self._heads, head_dim or self._dim)
        return memory[0], memory[1], self._windows.start(layer, self.length, count)

    def is_windowed(self, layer: int) -> bool:
        """Whether it keeps fewer rows than there may be tokens."""
        return self._rows[layer] < self.capacity

    def rows(self, layer: int, count: int) -> tuple[torch.Tensor, int]:
        """The same for a layer that has no keys and values apart: one row of 2 * Hkv * D numbers per token, [1, rows, ...]."""
        memory = self._of(layer, 1, 1, 2 * self._heads * self._dim)
        return memory[0], self._windows.start(layer, self.length, count)

    def several(self, layer: int, most: int, *dims: int) -> tuple[tuple[torch.Tensor, ...], int]:
        """The same for a layer that sees all tokens and keeps several rows of each, of so many numbers: each [1, rows, ...].

        Of the first kind it reads `most` rows for a token, of the others all.
        """
        if layer not in self._layers:
            assert self._sees[layer] is None, "a window has rows of one kind"
            dtype, rows = DTYPES[self._type], self._rows[layer]
            shapes = [(1, rows, width(dtype, dim)) for dim in dims]
            self._layers[layer], self._reads[layer] = self._laid_out(layer, shapes), most
        return self._layers[layer], self.length

    def compressed(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Of a layer that keeps vectors of several tokens at once: each kind of them [1, capacity // ratio, ...].

        That of tokens n * ratio to (n + 1) * ratio is row n, to be written once they have all been read. A timeline cut short
        leaves those beyond it, which are written anew.
        """
        return self._compressed[layer]

    def _of(self, layer: int, parts: int, heads: int, dim: int) -> tuple[torch.Tensor, ...]:
        if layer not in self._layers:
            dtype, rows = DTYPES[self._type], self._rows[layer]
            (memory,) = self._laid_out(layer, [(parts, heads, rows, width(dtype, dim))])
            self._layers[layer] = memory.unbind()
            window = self._sees[layer]
            if window is not None and rows < self.capacity:
                self._windows.add(layer, memory, window)
        return self._layers[layer]

    def _laid_out(self, layer: int, shapes: Sequence[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        """Tensors of these shapes one after another in the layer's memory."""
        dtype, sizes = DTYPES[self._type], [math.prod(shape) for shape in shapes]
        nbytes = sum(sizes) * dtype.itemsize
        assert nbytes <= len(self._memory[layer]), f"layer {layer} keeps more of a token than was planned"
        parts = torch.split(self._memory[layer][:nbytes].view(dtype), sizes)
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    def state(self, layer: int, *shapes: tuple[int, ...]) -> tuple[Tensors, Tensors]:
        """Of a recurrent layer: its tensors, to be read, and those that the pass must fill. See `States`."""
        return self._states.of(layer, *shapes)

    def advance(self, count: int) -> None:
        """The pass over `count` tokens is complete in every layer."""
        self.length += count
        self._states.commit()

    def mark(self) -> None:
        """Make the present length one that `truncate` reaches. Nothing to do where every layer keeps all."""
        self._states.mark(self.length)
        self._windows.mark(self.length)

    def reachable(self, length: int) -> int:
        """What `truncate(length)` will leave."""
        while (reached := self._windows.reachable(self._states.reachable(length, self.length))) != length:
            length = reached
        return length

    def truncate(self, length: int) -> None:
        """Forget everything after the first `length` tokens, or after fewer where what a layer needs of them is not kept."""
        assert 0 <= length <= self.length
        if (reached := self.reachable(length)) != self.length:
            self._states.go_back(reached)
            self._windows.go_back(reached)
        self.length = reached

    @staticmethod
    def state_bytes(values: int) -> int:
        """Memory for recurrent layers that remember so many numbers, with what is kept to go back to."""
        return (2 + MARKS) * values * 4

    def read_bytes(self, count: int) -> int:
        """What a pass over `count` tokens reads of the layers that keep any."""
        seen = self.length + count
        like = [min(seen, (self._sees[layer] or seen) + count - 1) for layer in self._layers if layer not in self._reads]
        further = sum(kept.read_bytes(seen, self._type) for layer, kept in self._further.items() if layer in self._layers)
        chosen = sum(self._chosen_bytes(layer, seen, count) for layer in self._reads)
        return sum(like) * self._token_bytes + chosen + further

    def _chosen_bytes(self, layer: int, seen: int, count: int) -> int:
        """As `count` tokens may choose all different rows."""
        rows, *others = (part.shape[-1] * part.itemsize for part in self._layers[layer])
        return min(seen, count * self._reads[layer]) * rows + seen * sum(others)

    @property
    def _token_bytes(self) -> int:
        """Of a token in a layer."""
        return 2 * self._heads * self._type.row_bytes(self._dim)


def _parted(memory: torch.Tensor, kept: Compressed, capacity: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """One tensor [1, capacity // ratio, ...] for each kind of vector, end to end in uint8 `memory`."""
    parts, begin = [], 0
    for dim in kept.widths:
        shape = (1, capacity // kept.ratio, width(dtype, dim))
        nbytes = math.prod(shape) * dtype.itemsize
        parts.append(memory[begin : begin + nbytes].view(dtype).view(shape))
        begin += nbytes
    return tuple(parts)


def _memory(sizes: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Pieces of at least so many bytes; in RAM they cost nothing until something is written. Raises `EngineError` when the
    system refuses them."""
    sizes = [-(-size // 64) * 64 for size in sizes]
    if device.type != "cpu":
        whole = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    else:
        whole = torch.frombuffer(aligned_memory(sum(sizes)), dtype=torch.uint8)
    return list(torch.split(whole, sizes))
