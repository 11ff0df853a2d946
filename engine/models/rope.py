"""Rotary position embedding: the angles of each position, and the published ways to stretch them over a longer context.

Source: Su et al. 2021, RoFormer; each stretch names its own.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.spec import Rotation


class Scaling(Protocol):
    """A stretch."""

    def angles(self, positions: torch.Tensor, frequencies: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Angles [P, R / 2] of positions [P] from the plain frequencies [R / 2], and what cosine and sine are times: [P, 1]."""
        ...

    @property
    def logit_factor(self) -> float:
        """What attention's logits are times, in the models that ask for it."""
        ...


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Slow rotations are divided by `factor`, fast ones not at all.

    Source: Peng et al. 2023, YaRN; the ramp's ends are rounded outwards unless `is_exact`. DeepSeek's `mscale` (of the table)
    and `mscale_all_dim` (of the logits) replace the paper's one factor.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    is_exact: bool = False
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    given_factor: float = 0.0  # of the table, where the configuration states it

    def angles(self, positions: torch.Tensor, frequencies: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        rotary_dim = 2 * len(frequencies)

        def dimension(rotations: float) -> float:
            return rotary_dim * math.log(self.original_context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if not self.is_exact:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        ramp = ((torch.arange(rotary_dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        stretched = frequencies * (1 - ramp) + frequencies / self.factor * ramp
        return torch.outer(positions, stretched), torch.full((len(positions), 1), self._table_factor)

    @property
    def logit_factor(self) -> float:
        return self._grown(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    @property
    def _table_factor(self) -> float:
        if self.given_factor:
            return self.given_factor
        if self.mscale and self.mscale_all_dim:
            return self._grown(self.mscale) / self._grown(self.mscale_all_dim)
        return self._grown(1.0)

    def _grown(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class LongScaling:
    """One divisor for each frequency: a set for the original context, another for positions beyond it.

    Source: Ding et al. 2024, LongRoPE. A key keeps the rotation that it was written with, as in token-by-token decoding of the
    published code.
    """

    original_context: int
    short_factors: tuple[float, ...]  # [R / 2]
    long_factors: tuple[float, ...]  # [R / 2]
    short_mscale: float
    long_mscale: float
    logit_factor: float = 1.0

    def angles(self, positions: torch.Tensor, frequencies: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        is_long = (positions >= self.original_context)[:, None]
        short, long = (frequencies / torch.tensor(factors) for factors in (self.short_factors, self.long_factors))
        scale = torch.where(is_long, self.long_mscale, self.short_mscale)
        return positions[:, None] * torch.where(is_long, long, short), scale


@dataclass(frozen=True, slots=True)
class BandScaling:
    """Slow rotations are divided by `factor`, fast ones not at all, and between two wavelengths a blend. Source: Llama 3.1."""

    factor: float
    original_context: int
    low_factor: float
    high_factor: float
    logit_factor: float = 1.0

    def angles(self, positions: torch.Tensor, frequencies: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        turns = self.original_context * frequencies / (2 * math.pi)  # within the original context
        blend = ((turns - self.low_factor) / (self.high_factor - self.low_factor)).clamp(0, 1)
        stretched = frequencies * blend + frequencies / self.factor * (1 - blend)
        return torch.outer(positions, stretched), torch.ones(len(positions), 1)


@dataclass(frozen=True, slots=True)
class PartScaling:
    """Only the fastest `share` of the frequencies turn, and those by the whole head's size. Source: Gemma 4's configuration."""

    share: float
    factor: float = 1.0
    logit_factor: float = 1.0

    def angles(self, positions: torch.Tensor, frequencies: torch.Tensor, theta: float) -> tuple[torch.Tensor, torch.Tensor]:
        turning = torch.arange(len(frequencies)) < int(self.share * len(frequencies))
        return torch.outer(positions, frequencies * turning / self.factor), torch.ones(len(positions), 1)


class Rope:
    """Cosine and sine, made as positions come up."""

    _STEP = 1024  # positions that are made at a time

    def __init__(self, rotary_dim: int, theta: float, scaling: Scaling | None = None) -> None:
        self._frequencies = theta ** (-torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)  # [R/2]
        self._theta, self._scaling = theta, scaling
        self._cosine = self._sine = torch.empty(0, rotary_dim // 2)

    def table(self, start: int, count: int, device: torch.device) -> Rotation:
        """Cosine and sine [T, R/2] of positions start to start + count, there. They are made on the CPU, alike for all."""
        end = start + count
        if end > len(self._cosine):
            positions = torch.arange(-(-end // self._STEP) * self._STEP, dtype=torch.float32)
            angles, scale = torch.outer(positions, self._frequencies), torch.ones(1)
            if self._scaling is not None:
                angles, scale = self._scaling.angles(positions, self._frequencies, self._theta)
            self._cosine, self._sine = ((turned * scale).to(device) for turned in (angles.cos(), angles.sin()))
        return self._cosine[start:end], self._sine[start:end]
