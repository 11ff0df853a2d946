"""Messages of `engine.protocol` with a child that has a model loaded: load it, ask it, read its answer."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.config import NO_REASONING, Reasoning, Sampling, Wishes
from engine.meter import Traffic
from engine.protocol_plan import Plan


class StopReason(StrEnum):
    END = "end"  # the model ended its turn
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str  # "system", "user" or "assistant"
    content: str
    reasoning: str = ""  # what the assistant thought before; whether the model sees it again is its template's business


class SpanKind(StrEnum):
    """What a part of an answer is."""

    ANSWER = "answer"
    THOUGHT = "thought"
    CALL = "call"  # of a tool: its name in the first line, then its arguments; comes whole


@dataclass(frozen=True, slots=True)
class ReasoningChoices:
    """What the loaded model's chat template takes. Without any the model thinks as it thinks."""

    efforts: tuple[str, ...] = ()  # from the least on
    default_effort: str = ""  # what is meant when none is chosen; empty where that is none of them
    can_switch: bool = False
    is_on: bool | None = None  # without a choice; None where that is neither


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model by name or folder. One child loads one model; another model or plan is another child."""

    request_id: int
    model: str
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True)
class Generate:
    """Answer a whole conversation. The engine reuses what it has already read of it."""

    request_id: int
    messages: tuple[ChatMessage, ...]
    sampling: Sampling = field(default_factory=Sampling)
    reasoning: Reasoning = NO_REASONING  # only what `Loaded.reasoning` offers is taken


@dataclass(frozen=True, slots=True)
class Loaded:
    request_id: int
    plan: Plan
    notice: str = ""  # one sentence on what makes it slower or different than planned, for the person
    reasoning: ReasoningChoices = ReasoningChoices()


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt is known; prefill begins. `reused_tokens` of `prompt_tokens` are already in the KV cache."""

    request_id: int
    prompt_tokens: int
    reused_tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer, at most 30 times a second. `tokens` is how many it took, `total_tokens` how many so far.

    All of `text` is of one span; `span` counts the spans of an answer, so that two calls in a row can be told apart.
    """

    request_id: int
    text: str
    tokens: int
    total_tokens: int
    kind: SpanKind = SpanKind.ANSWER
    span: int = 0


@dataclass(frozen=True, slots=True)
class Meter:
    """One record per token since the last sample, at most 5 times a second; while the prompt is read, one per chunk."""

    request_id: int
    records: tuple[Traffic, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    request_id: int
    stop_reason: StopReason
    prompt_tokens: int
    new_tokens: int
    first_token_seconds: float
    tokens_per_second: float  # decode only; 0 below two tokens
    context_used: int
