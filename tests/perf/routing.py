"""How a model's tokens choose experts, and the token ids that make a benchmark's traffic. Knows ids, no weights.

For comparison, traces of Qwen3-30B-A3B that BigMoeOnEdge published: overlap 0.38 of k, hottest tenth 58 %.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.session import Session
from tests.perf.encode import generator
from tests.perf.layout import TOPICS, Routing
from tests.perf.shapes import Shape

Ids = npt.NDArray[np.int64]  # [layers, tokens, k]
WINDOW = 64
_FIRST_TOKEN = 3  # special tokens are not met in the middle of a text
_TOPIC_TOKENS = 64  # mean run of tokens of one topic


@dataclass(frozen=True)
class RoutingStatistics:
    """Means over layers. `overlap` counts experts that a token shares with the one before; `distinct` those in 64 tokens."""

    overlap: float
    distinct: float
    hottest_share: float  # of all choices that fall on the most chosen tenth of a layer's experts
    tokens: int


def routing_statistics(ids: Ids, num_experts: int) -> RoutingStatistics:
    layers, tokens, _ = ids.shape
    assert tokens >= WINDOW, f"{tokens} tokens say nothing about the experts in {WINDOW}"
    chosen = np.zeros((layers, tokens, num_experts), dtype=bool)
    np.put_along_axis(chosen, ids, True, axis=2)
    counts = np.sort(chosen.sum(axis=1), axis=1)[:, ::-1]  # [layers, E]
    windows = [chosen[:, first : first + WINDOW].any(axis=1).sum(axis=1) for first in range(0, tokens - WINDOW + 1, WINDOW)]
    return RoutingStatistics(
        overlap=float((chosen[:, 1:] & chosen[:, :-1]).sum(axis=2).mean()),
        distinct=float(np.mean(windows)),
        hottest_share=float((counts[:, : max(1, num_experts // 10)].sum(axis=1) / counts.sum(axis=1)).mean()),
        tokens=tokens,
    )


def check_routing(statistics: RoutingStatistics, shape: Shape, routing: Routing) -> None:
    """Raises AssertionError unless routing is what the benchmark claims: tolerances cover 128 tokens of two layers or more."""
    figures = f"{shape.name}, {routing}: {asdict(statistics)}"
    if routing == "uniform":
        assert statistics.overlap <= 1.35 * shape.expected_overlap + 0.05, f"successive tokens route alike: {figures}"
        assert statistics.distinct >= 0.96 * shape.expected_distinct, f"some experts are never met: {figures}"
        return
    even = shape.hottest / shape.num_experts
    most = min(1.0, shape.hottest / shape.top_k)
    assert statistics.hottest_share >= even + 0.3 * (most - even), f"routing is hardly skewed: {figures}"
    assert statistics.overlap >= 1.5 * shape.expected_overlap, f"no locality in time: {figures}"


def token_ids(vocab: int, count: int, seed: int, routing: Routing) -> list[int]:
    """Independent tokens, or for skewed routing runs of tokens of one topic."""
    rng = generator(seed, f"tokens {routing}")
    if routing == "uniform":
        return [int(token) for token in rng.integers(_FIRST_TOKEN, vocab, count)]
    switches = rng.random(count) < 1 / _TOPIC_TOKENS
    topic, tokens = int(rng.integers(TOPICS)), []
    for switch in switches:
        topic = int(rng.integers(TOPICS)) if switch else topic
        first = max(_FIRST_TOKEN, -(-topic * vocab // TOPICS))
        tokens.append(int(rng.integers(first, -(-(topic + 1) * vocab // TOPICS))))
    return tokens


class RoutingRecorder:
    """Stands between a session's model and its experts and keeps the ids of every pass."""

    def __init__(self, session: Session) -> None:
        self._session, self._run = session, session._parts.experts
        self._ids: dict[int, list[Ids]] = {}

    def __enter__(self) -> "RoutingRecorder":
        self._session._parts.experts = self  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        self._session._parts.experts = self._run

    def __call__(self, layer: int, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        self._ids.setdefault(layer, []).append(ids.numpy().copy())
        return self._run(layer, x, ids, weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    @property
    def ids(self) -> Ids:
        """[layers, tokens, k]"""
        return np.stack([np.concatenate(self._ids[layer]) for layer in sorted(self._ids)])


def record_routing(session: Session, tokens: Sequence[int]) -> Ids:
    """Read `tokens` in a fresh context and return what each chose."""
    session.rewind(0)
    with RoutingRecorder(session) as recorder:
        session.sync(tokens)
    return recorder.ids
