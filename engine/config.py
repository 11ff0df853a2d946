"""What a person may ask for: placement wishes and sampling. Values only; the planner turns wishes into a `Plan`."""

from dataclasses import dataclass
from enum import StrEnum

from engine.errors import EngineError


class KvType(StrEnum):
    """How keys and values of the tokens read are kept."""

    FP32 = "fp32"
    BF16 = "bf16"
    Q8 = "q8"  # int8, a bf16 scale for each 32

    def row_bytes(self, dim: int) -> int:
        """Of `dim` numbers."""
        return {KvType.FP32: 4 * dim, KvType.BF16: 2 * dim, KvType.Q8: dim + 2 * -(-dim // 32)}[self]


@dataclass(frozen=True, slots=True)
class Wishes:
    """`None` leaves the choice to the planner. `expert_ram` is an amount ('3GB') or a share of the experts ('30%').

    `vram_limit` is what the model may take of the graphics cards' memory: an amount, a share of what they have free for one, or
    '0' for no card. What the driver needs comes on top.
    """

    expert_ram: str | None = None
    context: int | None = None
    prefill_chunk: int | None = None  # tokens of a prompt that are read at once
    kv_type: KvType | None = None
    vram_limit: str | None = None


NO_WISHES = Wishes()


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


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How a model should think before it answers; what is empty or None is left to its chat template."""

    effort: str = ""  # one of those that the template takes
    is_on: bool | None = None


NO_REASONING = Reasoning()


def check_sampling(sampling: Sampling) -> None:
    """Raises `EngineError` naming the first setting out of its range."""
    ranges = (
        ("max_tokens", sampling.max_tokens >= 1, "at least 1"),
        ("temperature", sampling.temperature == 0 or 0.01 <= sampling.temperature <= 10, "0, or 0.01 to 10"),
        ("top_k", sampling.top_k >= 0, "0 (off) or more"),
        ("top_p", 0.001 <= sampling.top_p <= 1, "0.001 to 1"),
        ("min_p", 0 <= sampling.min_p < 1, "0 to below 1"),
        ("repetition_penalty", 0.1 <= sampling.repetition_penalty <= 10, "0.1 to 10"),
        ("seed", sampling.seed is None or -(2**63) <= sampling.seed < 2**63, "a 64-bit number"),
    )
    for name, is_valid, allowed in ranges:
        if not is_valid:
            raise EngineError("sampling.range", f"{name} is {getattr(sampling, name)}.", f"It takes {allowed}.")
