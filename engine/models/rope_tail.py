"""Rotary embedding of the last numbers of a head, neighbours against each other. Source: DeepSeek-V4's published code."""

import torch

from engine.kernels.spec import Rotation


def turned(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [T, heads, D] with its last R numbers turned by cosine and sine [T, R / 2]."""
    cosine, sine = (part[:, None] for part in rotation)  # [T, 1, R / 2]
    size = 2 * cosine.shape[-1]
    even, odd = x[..., -size::2], x[..., 1 - size :: 2]
    pairs = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1)
    return torch.cat((x[..., :-size], pairs.flatten(-2)), dim=-1)


def turned_back(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """The inverse of `turned`."""
    cosine, sine = rotation
    return turned(x, (cosine, -sine))
