"""Mamba-2's state space layer without its products: what each token reads of a memory that decays, and the norm after it.

Source: Dao and Gu 2024, Transformers are SSMs, section 6; the gate goes before the norm as in their published code.
"""

import torch
import torch.nn.functional as F

_CHUNK = 64  # tokens that are mixed at once; more make larger squares, fewer more steps
_NOTHING = -60.0  # logarithm; smaller shares end in denormal numbers, which made a batch of products 17 times slower


def selective_scan(
    x: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    decay: torch.Tensor,
    memory: torch.Tensor,
    following: torch.Tensor,
) -> torch.Tensor:
    """What each token reads from a memory S [H, N, P] that it has just changed: [T, H, P].

    Token by token S = a S + b x^T with a = exp(decay), and c^T S is read. x [T, H, P], decay [T, H]; b and c [T, G, N] are
    those of a group of heads. `following` gets what S becomes. Within a chunk, with A the running product of a, token t reads
    A_t c_t^T S + sum over j up to t of A_t / A_j (c_t b_j) x_j.
    """
    if len(x) == 1:
        return _one_step(x[0], b[0], c[0], decay[0], memory, following)[None]
    groups, (heads, state, size) = b.shape[1], memory.shape
    read = []
    for start in range(0, len(x), _CHUNK):
        part = slice(start, start + _CHUNK)
        values = x[part].transpose(0, 1)  # [H, C, P]
        keys, queries = (given[part].transpose(0, 1) for given in (b, c))  # [G, C, N]
        fallen = decay[part].t().cumsum(dim=1)  # [H, C], logarithm of A
        between = _share((fallen[:, :, None] - fallen[:, None, :]).tril()).tril()  # [H, C, C], A_t / A_j
        alike = _by_head(queries @ keys.mT, heads)  # [H, C, C]
        before = (queries[:, None] @ memory.view(groups, -1, state, size)).flatten(0, 1)  # [H, C, P]
        read.append(_share(fallen)[..., None] * before + (alike * between) @ values)
        left = _share(fallen[:, -1:] - fallen)[..., None]  # [H, C, 1]
        torch.mul(memory, _share(fallen[:, -1:, None]), out=following)
        following.baddbmm_(_by_head(keys, heads).mT, values * left)
        memory = following
    return torch.cat(read, dim=1).transpose(0, 1)


def _one_step(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, decay: torch.Tensor, memory: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    """The rule itself: x [H, P], decay [H], b and c [G, N], to [H, P]."""
    torch.mul(memory, decay.exp()[:, None, None], out=following)
    by_group = following.view(len(b), -1, *memory.shape[1:])  # [G, H / G, N, P]
    by_group.addcmul_(b[:, None, :, None], x.view(len(b), -1, 1, x.shape[1]))
    return (c[:, None, None] @ by_group).view(x.shape)


def gated_group_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, groups: int, eps: float) -> torch.Tensor:
    """x silu(gate) scaled to unit root mean square within each of `groups` parts of its row, times weight [I]; all [T, I]."""
    gated = (x * F.silu(gate)).view(len(x), groups, -1)
    return F.rms_norm(gated, gated.shape[-1:], None, eps).flatten(1) * weight


def _share(logarithm: torch.Tensor) -> torch.Tensor:
    """What is left, from its logarithm; nothing where that is far below what fp32 adds to anything."""
    return logarithm.masked_fill(logarithm < _NOTHING, float("-inf")).exp()


def _by_head(of_groups: torch.Tensor, heads: int) -> torch.Tensor:
    """[G, ...] to [H, ...]."""
    return of_groups.repeat_interleave(heads // len(of_groups), dim=0)
