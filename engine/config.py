"""What a person may ask for: placement wishes and sampling. Values only; the planner turns wishes into a `Plan`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wishes:
    """`None` leaves the choice to the planner. `expert_ram` is an amount ('3GB') or a share of the experts ('30%')."""

    expert_ram: str | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn. Temperature 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0 and penalty 1 switch off."""

    max_tokens: int = 1024
    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 0.95
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
