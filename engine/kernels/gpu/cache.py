"""What a device holds of its experts, as tensors there: where each is, where they come from, and how they are described."""

from dataclasses import dataclass

import torch

from engine.kernels.gpu.shape import MatrixShape


@dataclass(frozen=True, eq=False)
class Described:
    """The experts of all layers, in the order of their numbers: int64 [E, W] words of which those in `is_inside` count from the
    slot's start; `up` is what gate is like."""

    words: torch.Tensor
    is_inside: torch.Tensor
    up: MatrixShape
    down: MatrixShape


@dataclass(frozen=True, eq=False)
class Cache:
    """Which expert is in which slot. The last three are what a step moves."""

    slot_of: torch.Tensor  # int32 [E], -1 for none
    expert_of: torch.Tensor  # int32 [N], -1 for none
    stamps: torch.Tensor  # int64 [N], the step that used it last
    clock: torch.Tensor  # int64 [1]
    moved_experts: torch.Tensor  # int32 [P]
    moved_slots: torch.Tensor  # int32 [P]
    num_moved: torch.Tensor  # int32 [1]


@dataclass(frozen=True, eq=False)
class Bank:
    """Where experts come from and go to, as addresses on the device."""

    sources: torch.Tensor  # int64 [E]
    targets: torch.Tensor  # int64 [N]
    described: Described
    words: torch.Tensor  # int64 [N, W], the descriptors of the slots
    slot_bytes: int
