"""Layers that remember all tokens so far in tensors of a fixed size. Each function reads a state and fills what follows it."""

import torch


def short_conv(x: torch.Tensor, past: torch.Tensor, following: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each channel's weighted sum over its last K values: x [T, C] to [T, C].

    `past` [K - 1, C] are the inputs before x, `following` gets those before what comes next; weight [C, K], the newest last.
    """
    joined, count, width = torch.cat((past, x)), len(x), weight.shape[1]
    following.copy_(joined[count:])
    y = joined[:count] * weight[:, 0]
    for tap in range(1, width):
        y += joined[tap : tap + count] * weight[:, tap]
    return y


_CHUNK = 64  # tokens that are solved at once; more make larger triangles, fewer more steps


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    rate: torch.Tensor,
    memory: torch.Tensor,
    following: torch.Tensor,
) -> torch.Tensor:
    """What each token reads from a memory S [Hv, Dk, Dv] that it has just changed: [Hv, T, Dv].

    Token by token S = a S + k d^T with d = rate (v - (a S)^T k) and a = exp(decay), and q^T S is read. q, k [Hv, T, Dk],
    v [Hv, T, Dv], decay and rate [Hv, T]. Within a chunk, with A the running product of a, the d solve a triangular system:
    d_t = rate_t (v_t - A_t S^T k_t - sum over j < t of A_t / A_j (k_t k_j) d_j).
    Source: Yang et al. 2024, Gated Delta Networks.
    """
    read = []
    for start in range(0, q.shape[1], _CHUNK):
        part = slice(start, start + _CHUNK)
        queries, keys = q[:, part], k[:, part]  # [Hv, C, Dk]
        fallen = decay[:, part].cumsum(dim=1)  # [Hv, C], logarithm of A
        between = (fallen[:, :, None] - fallen[:, None, :]).tril().exp().tril()  # [Hv, C, C], A_t / A_j
        scaled, own_rate = fallen.exp()[..., None], rate[:, part, None]
        triangle = (keys @ keys.mT * between * own_rate).tril(-1)
        wanted = own_rate * (v[:, part] - scaled * (keys @ memory))
        change = torch.linalg.solve_triangular(triangle, wanted, upper=False, unitriangular=True)  # [Hv, C, Dv]
        read.append(scaled * (queries @ memory) + (queries @ keys.mT * between) @ change)
        left = (fallen[:, -1:] - fallen).exp()[..., None]  # [Hv, C, 1]
        torch.mul(memory, scaled[:, -1:], out=following)
        following.baddbmm_((keys * left).mT, change)
        memory = following
    return torch.cat(read, dim=1)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Each vector x [..., D] divided by its length."""
    return x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()
