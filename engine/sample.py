"""Draws the next token from logits. A sampler is a closure; it knows no model and no text."""

from collections.abc import Callable, Sequence

import torch

from engine.config import Sampling
from engine.errors import EngineError

_NUCLEUS_AT_ONCE = 1024  # sorting a vocabulary of 150,000 takes 20 ms, and the nucleus is nearly always among the first few

Sampler = Callable[[torch.Tensor, Sequence[int]], int]  # (fp32 logits [V], ids so far) -> token id


def make_sampler(sampling: Sampling) -> Sampler:
    """Penalty, then temperature, then top-k, top-p and min-p, in the order that transformers applies them."""
    generator = torch.Generator()
    if sampling.seed is None:
        generator.seed()
    else:
        generator.manual_seed(sampling.seed)

    def sample(logits: torch.Tensor, seen: Sequence[int]) -> int:
        if not torch.isfinite(logits.sum()):
            raise EngineError(
                "model.not_finite", "The model computed something that is no number.", "Its weights are damaged: get it again."
            )
        if sampling.repetition_penalty != 1.0 and seen:
            logits = penalise(logits, seen, sampling.repetition_penalty)
        if sampling.temperature == 0:
            return int(logits.argmax())
        kept = restrict(logits / sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        return int(torch.multinomial(kept.softmax(dim=-1), 1, generator=generator))

    return sample


def penalise(logits: torch.Tensor, seen: Sequence[int], penalty: float) -> torch.Tensor:
    """Make seen tokens less likely: positive logits divided, negative ones multiplied. Source: Keskar et al. 2019, CTRL."""
    ids = torch.tensor(sorted(set(seen)))
    values = logits[ids]
    return logits.index_put((ids,), torch.where(values > 0, values / penalty, values * penalty))


def restrict(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """Set every token outside the chosen set to -inf; the likeliest always stays."""
    if top_k > 0:
        smallest = logits.topk(min(top_k, len(logits))).values[-1]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if top_p < 1:
        logits = _nucleus(logits, top_p)
    if min_p > 0:
        probabilities = logits.softmax(dim=-1)
        logits = logits.masked_fill(probabilities < min_p * probabilities.max(), -torch.inf)
    return logits


def _nucleus(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens that together reach `top_p`, with the one that crosses it. Source: Holtzman et al. 2020."""
    probabilities = logits.softmax(dim=-1)
    ordered, ids = probabilities.topk(min(_NUCLEUS_AT_ONCE, len(logits)))
    if ordered.sum() < top_p:
        ordered, ids = probabilities.sort(descending=True)
    kept = ids[ordered.cumsum(dim=-1) - ordered < top_p]
    return torch.full_like(logits, -torch.inf).index_copy(0, kept, logits[kept])
