"""Launches the Triton kernels: tensors to arguments and grids. Imported only where Triton is; knows no fallback."""

from collections.abc import Callable
from typing import Any

import torch
import triton

from engine.kernels.gpu.cache import Bank, Cache
from engine.kernels.gpu.jit import combine, gather, matmul, matvec, resolve
from engine.kernels.gpu.launch import (
    COMBINE_WARPS,
    COMBINE_WIDTH,
    FEW_PAIRS,
    FEW_TOKENS,
    GATHER_CHUNK,
    GATHER_PROGRAMS,
    GATHER_WARPS,
    MATMUL,
    MATVEC,
    RESOLVE_MOST_WARPS,
    RESOLVE_SLOTS_A_WARP,
    Launch,
)
from engine.kernels.gpu.shape import WORDS, MatrixShape
from engine.kernels.gpu.sorting import sort_by_slot
from engine.kernels.weights import ExpertMath, Weight

ExpertShape = tuple[MatrixShape, MatrixShape]  # up, which gate is like, and down


class Launcher:
    """On one device. `operands` is the type in which batches are multiplied."""

    def __init__(self, device: torch.device, operands: torch.dtype) -> None:
        self._device, self._operands = device, operands

    def linear(self, x: torch.Tensor, weight: Weight, shape: MatrixShape) -> torch.Tensor:
        """fp32 x [T, in] to fp32 [T, out]."""
        tokens, x = len(x), _parted(x, shape)
        y = torch.empty(tokens, shape.rows, device=x.device)
        parts = [0 if part is None else part.data_ptr() for part in (weight.data, weight.scales, weight.zeros, weight.bias)]
        if tokens <= FEW_TOKENS:
            launch = MATVEC[shape.form.format]
            arguments = (*parts, weight.global_scale, x, y, shape.rows, shape.cols, shape.steps, shape.form)
            self._run(matvec.linear, _grid(shape, launch, tokens), launch, *arguments, launch.rows, shape.width(launch.width))
        else:
            launch = _for_batch(shape, tokens)
            arguments = (*parts, weight.global_scale, x.to(self._operands), y, tokens, shape.rows, shape.cols, shape.steps)
            grid = _grid(shape, launch, -(-tokens // launch.tokens))
            self._run(matmul.linear, grid, launch, *arguments, shape.form, *_tile(shape, launch))
        return y

    def moe(
        self,
        words: torch.Tensor,
        shape: ExpertShape,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor,
        math: ExpertMath,
    ) -> None:
        """Fills the rows of outputs fp32 [T, k, H] that slots int32 [T, k] names; x fp32 [T, H], words int64 [N, W]."""
        x = _parted(x, shape[0])
        (self._few if len(x) <= FEW_TOKENS else self._many)(words, shape, x, slots, outputs, math)

    def _few(
        self,
        words: torch.Tensor,
        shape: ExpertShape,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor,
        math: ExpertMath,
    ) -> None:
        (up, down), pairs = shape, slots.numel()
        mixed = torch.empty(pairs, up.rows, device=x.device)
        launch = MATVEC[up.form.format]
        self._run(
            matvec.gate_up, _grid(up, launch, pairs), launch, words, slots, x, mixed, up.rows, up.cols, slots.shape[1],
            math.alpha, math.limit, up.steps, up.form, math.activation.name, down.form.is_packed,
            launch.rows, up.width(launch.width),
        )  # fmt: skip
        launch = MATVEC[down.form.format]
        self._run(
            matvec.down, _grid(down, launch, pairs), launch, words, slots, mixed, outputs, down.rows, down.cols,
            down.steps, down.form, launch.rows, down.width(launch.width),
        )  # fmt: skip

    def _many(
        self,
        words: torch.Tensor,
        shape: ExpertShape,
        x: torch.Tensor,
        slots: torch.Tensor,
        outputs: torch.Tensor,
        math: ExpertMath,
    ) -> None:
        (up, down), pairs = shape, slots.numel()
        of_one = pairs // min(len(words), pairs)
        first, second = _for_batch(up, of_one), _for_batch(down, of_one)
        assert first.tokens == second.tokens, "one sorting serves both"
        blocks = sort_by_slot(slots, len(words), first.tokens)
        lists = (blocks.order, blocks.slots, blocks.firsts, blocks.ends)
        mixed = torch.empty(pairs, up.rows, dtype=self._operands, device=x.device)
        self._run(
            matmul.gate_up, _grid(up, first, len(blocks.slots)), first, words, *lists, x.to(self._operands), mixed,
            up.rows, up.cols, slots.shape[1], math.alpha, math.limit, up.steps, up.form, math.activation.name,
            down.form.is_packed, *_tile(up, first),
        )  # fmt: skip
        self._run(
            matmul.down, _grid(down, second, len(blocks.slots)), second, words, *lists, mixed, outputs,
            down.rows, down.cols, down.steps, down.form, *_tile(down, second),
        )  # fmt: skip

    def combine(self, outputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """fp32 outputs [T, k, H] and weights [T, k] to [T, H]."""
        tokens, top_k, hidden = outputs.shape
        y = torch.empty(tokens, hidden, device=outputs.device)
        grid = (-(-hidden // COMBINE_WIDTH), tokens)
        self._start(combine.combine, grid, COMBINE_WARPS, 1, outputs, weights, y, hidden, top_k, COMBINE_WIDTH)
        return y

    def resolve(
        self, ids: torch.Tensor, cache: Cache, counters: torch.Tensor, first_expert: int, first_slot: int, num_slots: int
    ) -> torch.Tensor:
        """ids int32 [T, k] of a layer to slots int32 [T, k]."""
        slots, tile = torch.empty_like(ids), triton.next_power_of_2(num_slots)
        warps = min(max(1, tile // RESOLVE_SLOTS_A_WARP), RESOLVE_MOST_WARPS)
        self._start(
            resolve.resolve, (1,), warps, 1, ids, slots, cache.slot_of, cache.expert_of, cache.stamps, cache.clock,
            cache.moved_experts, cache.moved_slots, cache.num_moved, counters, first_expert, first_slot, num_slots,
            ids.numel(), triton.next_power_of_2(ids.numel()), tile,
        )  # fmt: skip
        return slots

    def gather(self, cache: Cache, bank: Bank) -> None:
        """What `resolve` has said."""
        self._start(
            gather.gather, (GATHER_PROGRAMS,), GATHER_WARPS, 1, bank.sources, bank.targets, cache.moved_experts,
            cache.moved_slots, cache.num_moved, bank.described.words, bank.described.is_inside, bank.words, bank.slot_bytes,
            GATHER_CHUNK, triton.next_power_of_2(WORDS),
        )  # fmt: skip

    def _run(self, kernel: Any, grid: tuple[int, ...], launch: Launch, *arguments: Any) -> None:
        self._start(kernel, grid, launch.warps, launch.stages, *arguments)

    def _start(self, kernel: Any, grid: tuple[int, ...], warps: int, stages: int, *arguments: Any) -> None:
        start: Callable[..., Any] = kernel[grid]
        if self._device.type == "cpu":
            start(*arguments)
            return
        with torch.accelerator.device_index(self._device.index or 0):  # Triton launches on the current device
            start(*arguments, num_warps=warps, num_stages=stages)


def _parted(x: torch.Tensor, shape: MatrixShape) -> torch.Tensor:
    """x [T, in] as a matrix takes it: for packed ones, the even columns before the odd ones."""
    if not shape.form.is_packed:
        return x
    return x.view(len(x), -1, 2).transpose(1, 2).reshape(x.shape)


def _grid(shape: MatrixShape, launch: Launch, count: int) -> tuple[int, int]:
    return -(-shape.rows // launch.rows), count


def _for_batch(shape: MatrixShape, tokens_of_one: int) -> Launch:
    launch = MATMUL[shape.form.format]
    return launch if tokens_of_one > FEW_PAIRS else launch.narrowed(FEW_PAIRS)


def _tile(shape: MatrixShape, launch: Launch) -> tuple[int, int, int]:
    return launch.tokens, launch.rows, shape.width(launch.width)
