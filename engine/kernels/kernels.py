"""What the rest of the engine asks of a set of kernels, and the choice between the native ones and the reference."""

from typing import Protocol

import torch

from engine.errors import EngineError
from engine.kernels.delta import DeltaBlock, DeltaBlockSpec
from engine.kernels.native import ExpertTable, Native
from engine.kernels.reference import Reference
from engine.kernels.spec import AttentionBlock, AttentionSpec, FeedForward, Router
from engine.kernels.threads import kernel_threads
from engine.kernels.weights import SILU, ExpertMath, Weight


class Kernels(Protocol):
    """Tensors in and out are fp32. See `Native` for shapes; results stay valid, arguments are not kept."""

    @property
    def isa(self) -> str: ...

    def check(self, weight: Weight, name: str) -> None:
        """Raises `EngineError` naming a weight that these kernels do not take."""

    def has_finite_scales(self, table: ExpertTable, slot: int) -> bool:
        """Whether every scale of the expert in `slot` is a finite number."""
        ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor | Weight) -> torch.Tensor: ...

    def swiglu(self, gate: Weight, up: Weight, down: Weight) -> FeedForward: ...

    def moe(
        self,
        table: ExpertTable,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor | None,
        weights: torch.Tensor | None = None,
        math: ExpertMath = SILU,
    ) -> torch.Tensor | None: ...

    def combine(self, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor: ...

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
    ) -> torch.Tensor: ...

    def attention_block(self, spec: AttentionSpec) -> AttentionBlock: ...

    def delta_block(self, spec: DeltaBlockSpec) -> DeltaBlock: ...

    def router(self, weight: Weight, top_k: int, *, renormalise: bool) -> Router: ...

    def read(self, memory: torch.Tensor) -> int:
        """Reads every byte once with all threads: timed, the ceiling of what a kernel can do."""
        ...


def open_kernels() -> tuple[Kernels, str]:
    """The fastest kernels that this computer runs, and one sentence where they are not the native ones.

    For the whole process, torch is left the threads that suit them, and takes denormal numbers as zeros.
    """
    threads = kernel_threads()
    torch.set_flush_denormal(True)  # a recurrent state that has decayed to nothing would be computed many times slower
    try:
        kernels = Native(threads)
    except EngineError as error:
        torch.set_num_threads(threads)
        return Reference(), f"{error.text} Answers will be several times slower. {error.hint}".strip()
    torch.set_num_threads(1)  # what is left to torch is too small to share, and its threads would compete with the kernels'
    return kernels, ""
