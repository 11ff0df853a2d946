"""Several tokens' vectors as one: a weighted mean whose weights are a softmax over the tokens, for each number by itself.

Source: DeepSeek-AI 2026, DeepSeek-V4, section 2.3, equations 9 to 12 and 20 to 23. A mean in the making is kept as the largest
logit so far, the sum of the weights relative to it and the weighted sum: that is all that a later pass needs of the tokens of
an entry that is not complete. Knows positions, no cache and no layer.
"""

import torch
import torch.nn.functional as F

from engine.kernels.kernels import Kernels
from engine.kernels.reference import rms_norm
from engine.models.decoder import Plain, Shapes
from engine.models.layers import Weights
from engine.models.rope import Rope
from engine.models.rope_tail import turned

_TOP, _WEIGHT, _SUM = range(3)


def compressor_shapes(name: str, hidden_size: int, dim: int, ratio: int, *, overlaps: bool) -> Shapes:
    """Of `Compressor` under that name."""
    width = dim * (2 if overlaps else 1)
    return {
        f"{name}.wkv": (width, hidden_size),
        f"{name}.wgate": (width, hidden_size),
        f"{name}.ape": Plain((ratio, width)),
        f"{name}.norm.weight": (dim,),
    }


class Compressor:
    """One entry of `dim` numbers for each `ratio` tokens; with `overlaps` it is of the `ratio` tokens before them too, which
    have numbers and logits of their own for that."""

    def __init__(self, weights: Weights, kernels: Kernels, dim: int, ratio: int, rope: Rope, eps: float) -> None:
        self._kernels, self._dim, self._ratio, self._rope, self._eps = kernels, dim, ratio, rope, eps
        self._values, self._logits = weights.matrix("wkv"), weights.matrix("wgate")
        self._bias = weights.vector("ape").view(ratio, -1)  # [ratio, width]
        self._norm = weights.vector("norm.weight")

    @property
    def state_shape(self) -> tuple[int, int]:
        return 3, self._bias.shape[1]

    def __call__(self, x: torch.Tensor, start: int, now: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """x [T, H] of the tokens from position `start` on, to the entries [n, 1, dim] that they complete, turned as the first
        of their own tokens is. `now` and `following` are the state before and after, zeros at position 0."""
        values, logits = self._kernels.linear(x, self._values), self._kernels.linear(x, self._logits)
        entries = compress(values, logits, self._bias, start, self._dim, now, following)
        if not len(entries):
            return entries[:, None]
        first = start // self._ratio * self._ratio
        table = self._rope.table(first, len(entries) * self._ratio, x.device)
        cosine, sine = (part[:: self._ratio] for part in table)
        return turned(rms_norm(entries, self._norm, self._eps)[:, None], (cosine, sine))


def compress(
    values: torch.Tensor,
    logits: torch.Tensor,
    bias: torch.Tensor,
    start: int,
    dim: int,
    now: torch.Tensor,
    following: torch.Tensor,
) -> torch.Tensor:
    """Values and logits [T, W] from position `start` on and a bias [ratio, W] of the logits, to the means [n, dim] that are
    complete. W is `dim`, or twice that: then the first half counts in the entry that follows.

    `now` [3, W] holds what earlier tokens have given to the entry in the making, and in its first half to the one after;
    `following` is written.
    """
    ratio, overlaps = len(bias), values.shape[1] == 2 * dim
    groups = _by_entry(values, logits, bias, start % ratio)  # [n, 3, W]
    groups[:1] = _joined(now[None], groups[:1])
    own = groups[..., -dim:]
    if overlaps:
        own[1:] = _joined(groups[:-1, :, :dim], own[1:])
    done = (start % ratio + len(values)) // ratio
    following.zero_()
    if done < len(groups):
        following.copy_(groups[done])
    elif overlaps:
        following[:, dim:] = groups[-1, :, :dim]
    return own[:done, _SUM] / own[:done, _WEIGHT]


def _by_entry(values: torch.Tensor, logits: torch.Tensor, bias: torch.Tensor, before: int) -> torch.Tensor:
    """Sums in the making [n, 3, W] of tokens [T, W], of which `before` belong to the first entry and came earlier."""
    ratio = len(bias)
    edges = (0, 0, before, -(before + len(values)) % ratio)
    logits = F.pad(logits, edges, value=float("-inf")).view(-1, *bias.shape) + bias  # [n, ratio, W]
    values = F.pad(values, edges).view(-1, *bias.shape)
    top = logits.amax(dim=1)
    weights = (logits - top[:, None]).exp()
    return torch.stack((top, weights.sum(dim=1), (weights * values).sum(dim=1)), dim=1)


def _joined(earlier: torch.Tensor, later: torch.Tensor) -> torch.Tensor:
    """Sums in the making [n, 3, ...] of which the earlier ones may be of no token at all."""
    tops = earlier[:, _TOP].masked_fill(earlier[:, _WEIGHT] == 0, float("-inf"))
    top = torch.maximum(tops, later[:, _TOP])
    sums = earlier[:, 1:] * (tops - top).exp()[:, None] + later[:, 1:] * (later[:, _TOP] - top).exp()[:, None]
    return torch.cat((top[:, None], sums), dim=1)
