"""Sampling against transformers' own logits processors, and the same seed giving the same tokens."""

import pytest
import torch

from engine.config import Sampling, check_sampling
from engine.errors import EngineError
from engine.sample import make_sampler, penalise, restrict

logits_process = pytest.importorskip("transformers.generation.logits_process", reason="the reference is not installed")


def _logits(seed: int) -> torch.Tensor:
    return torch.randn(500, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(40, 1.0, 0.0), (0, 0.9, 0.0), (0, 1.0, 0.05), (50, 0.8, 0.02), (3, 0.01, 0.9)]
)
def test_restrictions_equal_the_reference(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    expected, ids = _logits(seed)[None], torch.zeros(1, 1, dtype=torch.long)
    if top_k:
        expected = logits_process.TopKLogitsWarper(top_k)(ids, expected)
    if top_p < 1:
        expected = logits_process.TopPLogitsWarper(top_p)(ids, expected)
    if min_p:
        expected = logits_process.MinPLogitsWarper(min_p)(ids, expected)
    torch.testing.assert_close(restrict(_logits(seed), top_k, top_p, min_p), expected[0])


def test_penalty_equals_the_reference() -> None:
    seen = [3, 7, 7, 400]
    expected = logits_process.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), _logits(0)[None].clone())[0]
    torch.testing.assert_close(penalise(_logits(0), seen, 1.3), expected)


def test_same_seed_same_tokens_and_frequencies_follow_probabilities() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    settings = Sampling(temperature=1.0, top_p=1.0, seed=7)
    draws = [make_sampler(settings), make_sampler(settings)]
    first, second = ([draw(logits, []) for _ in range(4000)] for draw in draws)
    assert first == second
    for token, probability in enumerate((0.5, 0.3, 0.15, 0.05)):
        assert abs(first.count(token) / 4000 - probability) < 0.03
    assert make_sampler(Sampling(temperature=0.0))(_logits(1), []) == int(_logits(1).argmax())


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.0},
        {"max_tokens": 0},
        {"repetition_penalty": 0.0},
    ],
)
def test_settings_out_of_range_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(EngineError, match=next(iter(bad))):
        check_sampling(Sampling(**bad))  # type: ignore[arg-type]
