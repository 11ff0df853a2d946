"""The kernels of a device that torch knows: Triton's over the checkpoint's own bytes, and torch's operations for the rest.

Where Triton is absent or refuses a kernel, `Reference` computes it on the device, and `notice` says so in a sentence.
"""

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from engine.kernels.gpu.attention import attention
from engine.kernels.gpu.launch import FEW_TOKENS
from engine.kernels.gpu.shape import WORDS, MatrixShape, shape_at, shape_of
from engine.kernels.native import ExpertTable
from engine.kernels.reference import Reference
from engine.kernels.spec import Router
from engine.kernels.weights import SILU, ExpertMath, Format, Weight, plain, plain_dtype, plain_tensor

_T = TypeVar("_T")
_BF16_CORES = (8, 0)  # the first compute capability that has them


class DeviceKernels(Reference):
    """`Kernels` for tensors on `device`, weights among them. With `fallback` torch does everything.

    Single tokens are computed in fp32. Batches are multiplied in bf16 with fp32 sums, in fp16 where the card has no bf16, and
    in fp32 on the CPU, where Triton's interpreter runs them.
    """

    def __init__(self, device: torch.device, fallback: bool = False) -> None:
        super().__init__()
        self.device, self.notice = device, ""
        self.operands = _operands(device)
        self._shapes: WeakKeyDictionary[ExpertTable, tuple[MatrixShape | None, MatrixShape | None]] = WeakKeyDictionary()
        self._launcher: Any = None
        if not fallback:
            self._open()

    @property
    def isa(self) -> str:  # type: ignore[override]
        return "torch" if self._launcher is None else "Triton"

    @property
    def launcher(self) -> Any:
        """`engine.kernels.gpu.launcher.Launcher`, or None where Triton does not run."""
        return self._launcher

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor:
        matrix = plain(weight.contiguous()) if isinstance(weight, torch.Tensor) else weight
        x = x.float().contiguous()
        if _is_tensor(matrix) and len(x) > FEW_TOKENS:
            return self._product(x, plain_tensor(matrix), matrix.bias)
        shape = shape_of(matrix)
        if self._launcher is None or shape is None or not len(x):
            return super().linear(x, matrix)
        y: torch.Tensor = self._try(lambda: self._launcher.linear(x, matrix, shape), lambda: self.linear(x, matrix))
        return y

    def moe(
        self,
        table: ExpertTable,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
        math: ExpertMath = SILU,
    ) -> torch.Tensor | None:
        """As `Native.moe`; `table.words` are the descriptors on the device where it has them."""
        if not len(x):
            return None if weights is None else torch.empty_like(x)
        if outputs is None:
            outputs = x.new_empty(*slots.shape, x.shape[1])
        up, down = self._shapes_of(table)
        if self._launcher is None or up is None or down is None:
            super().moe(table, x, slots, outputs, math=math)
        else:
            words, x = words_of(table, self.device), x.float().contiguous()
            self._try(
                lambda: self._launcher.moe(words, (up, down), x, slots, outputs, math),
                lambda: self.moe(table, x, slots, outputs, math=math),
            )
        return None if weights is None else self.combine(outputs, weights)

    def combine(self, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        weights = weights.float().contiguous()
        if self._launcher is None:
            return super().combine(outputs, weights)
        y: torch.Tensor = self._try(lambda: self._launcher.combine(outputs, weights), lambda: self.combine(outputs, weights))
        return y

    def attention(
        self,
        q: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        sinks: torch.Tensor | None = None,
        softcap: float = 0.0,
        row: torch.Tensor | None = None,
    ) -> torch.Tensor:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        return attention(q, keys, values, scale, window, sinks, softcap, self.operands, row)

    def router(self, weight: Weight, top_k: int, *, renormalise: bool) -> Router:
        """In fp32, whatever the batch: rounding would choose other experts."""

        def route(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if _is_tensor(weight) and len(x) > FEW_TOKENS:
                logits = F.linear(x, plain_tensor(weight).float(), None if weight.bias is None else weight.bias.float())
            else:
                logits = self.linear(x, weight)
            weights, ids = torch.topk(logits.softmax(dim=-1), top_k, dim=-1)  # [T, k]
            return ids.int(), weights / weights.sum(dim=-1, keepdim=True) if renormalise else weights

        return route

    def read(self, memory: torch.Tensor) -> int:
        is_whole = memory.is_contiguous() and memory.nbytes % 8 == 0 and memory.data_ptr() % 8 == 0
        return int((memory.view(torch.uint8).flatten().view(torch.int64) if is_whole else memory).sum())

    def _product(self, x: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """A batch times a matrix that torch knows."""
        if matrix.dtype == torch.float32 or self.device.type != "cuda":
            y = x @ matrix.float().t()
        else:
            kind = matrix.dtype if matrix.dtype == torch.float16 else self.operands
            y = torch.mm(x.to(kind), matrix.to(kind).t(), out_dtype=torch.float32)
        return y if bias is None else y + bias.float()

    def _shapes_of(self, table: ExpertTable) -> tuple[MatrixShape | None, MatrixShape | None]:
        """Of up and down, from the first expert that is described: all of a table are alike."""
        known = self._shapes.get(table)
        if known is None:
            entry = next((entry for entry in table.entries if entry.up.rows), None)
            if entry is None:
                return None, None
            known = self._shapes[table] = shape_at(entry.up), shape_at(entry.down)
            assert not entry.gate.rows or shape_at(entry.gate) == known[0], "gate and up are stored alike"
        return known

    def _open(self) -> None:
        """Triton with a trial: it may be there without a compiler, or not know the device."""
        try:
            from engine.kernels.gpu.launcher import Launcher
        except ImportError as error:
            self._give_up(f"{error.name or 'Triton'} is not installed")
            return
        self._launcher = Launcher(self.device, self.operands)
        x, matrix = torch.ones(1, 40, device=self.device), torch.ones(3, 40, device=self.device)
        try:
            is_right = bool((self._launcher.linear(x, plain(matrix), shape_of(plain(matrix))) == 40).all())
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a compiler, a driver or a cache folder may say
            self._give_up(str(error).strip().partition("\n")[0])
            return
        if not is_right:
            self._give_up("it computes wrong numbers on this device")

    def reads(self, table: ExpertTable) -> bool:
        """Whether Triton's kernels take its experts, of which one is there at least."""
        return self._launcher is not None and None not in self._shapes_of(table)

    def tries(self, run: Callable[[], object]) -> bool:
        """Whether Triton does that; where it refuses, torch does everything from now on."""

        def done() -> bool:
            run()
            return True

        return self._try(done, lambda: False)

    def _try(self, run: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        from triton.errors import TritonError

        try:
            return run()
        except TritonError as error:
            self._give_up(str(error).strip().rpartition("\n")[2])
            return otherwise()

    def _give_up(self, reason: str) -> None:
        self._launcher = None
        self.notice = f"Torch computes the experts in place of Triton, several times slower: {reason.rstrip('.')}."


def _is_tensor(weight: Weight) -> bool:
    """One that torch multiplies by."""
    is_plain = weight.scales is None and not weight.element_step and weight.format <= Format.BF16
    return is_plain and weight.data.storage_offset() % plain_dtype(weight.format).itemsize == 0


def words_of(table: ExpertTable, device: torch.device) -> torch.Tensor:
    """A table's descriptors on the device, int64 [slots, W]."""
    if table.words is not None:
        return table.words
    return torch.frombuffer(table.entries, dtype=torch.int64).view(len(table), WORDS).to(device)


def _operands(device: torch.device) -> torch.dtype:
    if device.type != "cuda":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    has_bf16 = torch.version.hip is not None or torch.cuda.get_device_capability(device) >= _BF16_CORES
    return torch.bfloat16 if has_bf16 else torch.float16
