"""Messages of `engine.protocol`: where a model would live on this computer and how fast it would be."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.config import KvType
from engine.meter import Link, Traffic


class Fit(StrEnum):
    """Where a model would live here, the fastest first; the last three do not run."""

    VRAM = "vram"
    VRAM_RAM = "vram_ram"
    RAM = "ram"
    DISK = "disk"  # experts stream from it
    NO_SPACE = "no_space"  # it would run, and the drive cannot take it
    NO_MEMORY = "no_memory"  # not even its dense part and one token's experts have room
    UNSUPPORTED = "unsupported"  # architecture or format

    @property
    def runs(self) -> bool:
        return self in (Fit.VRAM, Fit.VRAM_RAM, Fit.RAM, Fit.DISK)


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Seconds from a question to the first token of its answer: `low` with the experts in memory, `high` just after loading."""

    prompt_tokens: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tier:
    """What one kind of memory or the drive holds of a model. `room` is what Stoker may use of it, in bytes as all others."""

    link: Link  # VRAM, RAM or disk
    name: str  # of the card or the drive; "RAM"
    room: int
    dense: int = 0
    kv: int = 0
    workspace: int = 0
    experts: int = 0
    num_experts: int = 0
    model: int = 0  # of the drive: all of its files

    @property
    def used(self) -> int:
        return self.dense + self.kv + self.workspace + self.experts + self.model


class Change(StrEnum):
    """What a person could change, about the computer or about what is asked of it."""

    RAM = "ram"
    DISK = "disk"
    CONTEXT = "context"
    EXPERT_RAM = "expert_ram"
    PREFILL_CHUNK = "prefill_chunk"
    KV_TYPE = "kv_type"
    VRAM_LIMIT = "vram_limit"


@dataclass(frozen=True, slots=True)
class Gain:
    """What one change would bring. `text` names it ("32 GB more RAM"), `tokens_per_second` is afterwards.

    `amount` is in bytes: of RAM or a wish what is taken more, less than 0 where memory is given back; of a drive per second.
    """

    change: Change
    text: str
    amount: int
    tokens_per_second: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a model would run on this computer as it is now. `text` is one sentence with its numbers."""

    fit: Fit
    text: str
    tokens_per_second: tuple[float, float] | None = None  # None where this computer has not been measured yet
    hint: str = ""  # the nearest plan that can be met, where this one cannot
    plan: "Plan | None" = None  # with all its numbers, where there is one


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lives and what that should give. Made once by `engine.plan`; nothing is decided after it."""

    model_name: str
    architecture: str
    weight_format: str
    num_layers: int  # MoE layers
    num_experts: int  # per layer
    top_k: int
    expert_bytes: int
    slots_per_layer: tuple[int, ...]
    dense_bytes: int
    expert_ram_bytes: int
    kv_bytes: int
    workspace_bytes: int
    context: int
    model_bytes: int
    sentence: str  # why it is so, for the window and the terminal
    predicted: Traffic | None = None  # one decode token; None until the rates are measured
    predicted_tokens_per_second: tuple[float, float] | None = None  # low, high
    ceilings_gbps: dict[Link, float] = field(default_factory=dict)  # measured on this machine
    first_tokens: tuple[FirstToken, ...] = ()  # for prompts of 1K and 8K, as far as the context holds them
    limiting: Link | None = None  # the link that takes most of a token's time
    basis: str = ""  # where the hit rate of the prediction is from, in words
    unknown: str = ""  # why there is no prediction, where there is none: "cannot estimate, because …"
    card_slots: tuple[int, ...] = ()  # experts in the memory of each graphics card, the one with the dense weights first
    tiers: tuple[Tier, ...] = ()
    notes: tuple[str, ...] = ()  # what else a person should know, a sentence each
    gains: tuple[Gain, ...] = ()  # what one change of the computer would bring
    prices: tuple[Gain, ...] = ()  # what one step of a wish costs or brings
    prefill_chunk: int = 512  # tokens of a prompt that are read at once
    measured_tokens_per_second: float | None = None  # in the middle of `measured_answers` given here by such a plan
    measured_answers: int = 0
    kv_type: KvType = KvType.BF16

    @property
    def vram_slots(self) -> int:
        return sum(self.card_slots)


@dataclass(frozen=True, slots=True)
class WishLimits:
    """Between which wishes a model can be planned here now; bytes of memory for experts, and of the graphics cards'."""

    least_context: int
    most_context: int
    least_expert_ram: int  # one token's experts, and the next layer's
    most_expert_ram: int  # all experts, or what is free at the context of the plan
    least_prefill_chunk: int = 64
    most_prefill_chunk: int = 2048
    least_vram: int = 0  # the dense weights, the context and some experts; `vram_limit` may also be 0
    most_vram: int = 0  # what the cards have free, or all that the model needs; 0 where they cannot serve it
