"""The arithmetic of a layer in torch: slow and surely right, and what every faster kernel is held against."""

import torch
import torch.nn.functional as F

_SCRATCH_BYTES = 4 << 20  # an upcast block that stays in the CPU's cache: 13 GB/s of bf16 read, against 1.5 without


class Reference:
    """Matrix products in fp32 over weights as published (F32, F16, BF16). Not thread-safe: it owns its scratch memory."""

    def __init__(self) -> None:
        self._scratch = torch.empty(_SCRATCH_BYTES // 4, dtype=torch.float32)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, in] fp32 times weight [out, in] of any supported type, giving fp32 [T, out]."""
        if weight.dtype == torch.float32:
            return F.linear(x, weight)
        out_features, in_features = weight.shape
        rows = max(1, self._scratch.numel() // in_features)
        if rows * in_features > self._scratch.numel():
            self._scratch = torch.empty(in_features, dtype=torch.float32)
        if rows >= out_features:
            return x @ self._upcast(weight).t()
        y = x.new_empty(x.shape[0], out_features)
        for first in range(0, out_features, rows):
            y[:, first : first + rows] = x @ self._upcast(weight[first : first + rows]).t()
        return y

    def _upcast(self, weight: torch.Tensor) -> torch.Tensor:
        return self._scratch[: weight.numel()].view(weight.shape).copy_(weight)

    def swiglu(self, x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        """down(silu(gate x) * up x): x [T, H] to [T, H]. Source: Shazeer 2020, GLU Variants."""
        return self.linear(F.silu(self.linear(x, gate)) * self.linear(x, up), down)
