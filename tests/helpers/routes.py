"""Routing made up for tests of the expert cache: uniform, and of topics that switch. Deterministic; no weights."""

import random
from itertools import accumulate

from engine.experts.trace import Geometry, Routing
from engine.meter import Phase

EXPERTS = 128


def geometry(layers: int, top_k: int, num_experts: int = EXPERTS) -> Geometry:
    return Geometry("made-up", num_experts, top_k, dict.fromkeys(range(layers), 1000))


def routing(step: int, layer: int, experts: list[int]) -> Routing:
    return Routing(0, Phase.DECODE, step, layer, tuple(experts), (1 / len(experts),) * len(experts))


def uniform(layers: int, steps: int, top_k: int, seed: int = 1) -> list[Routing]:
    rng = random.Random(seed)
    return [routing(step, layer, rng.sample(range(EXPERTS), top_k)) for step in range(steps) for layer in range(layers)]


def topics(
    layers: int, steps: int, top_k: int = 6, topic_steps: int = 400, num_topics: int = 4, seed: int = 1
) -> list[Routing]:
    """Each topic prefers 72 experts in each layer by Zipf's law, and a token keeps 20 % of the experts of the token before.

    That gives, as the published trace of Qwen3-30B-A3B: 0.38 of k shared by successive tokens, 0.58 of choices on a tenth of the
    experts, 70 experts met in 128 tokens (there 0.38, 0.56, 64).
    """
    rng, used = random.Random(seed), 72
    zipf = list(accumulate(1 / (rank + 1) for rank in range(used)))
    favourites = [[rng.sample(range(EXPERTS), used) for _ in range(layers)] for _ in range(num_topics)]
    previous: list[list[int]] = [[] for _ in range(layers)]
    routings = []
    for step in range(steps):
        topic = favourites[step // topic_steps % num_topics]
        for layer in range(layers):
            experts = [expert for expert in previous[layer] if rng.random() < 0.2]
            while len(experts) < top_k:
                expert = rng.choices(topic[layer], cum_weights=zipf)[0]
                if expert not in experts:
                    experts.append(expert)
            previous[layer] = experts
            routings.append(routing(step, layer, experts))
    return routings
