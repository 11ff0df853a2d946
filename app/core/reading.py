"""What the meter shows at one moment: values only, ready to be drawn. Knows neither how they came to be nor how they look."""

from dataclasses import dataclass

from engine.protocol import Link, Origin

LINK_NAMES = {Link.VRAM: "VRAM", Link.PCIE: "PCIe", Link.RAM: "RAM", Link.DISK: "Disk"}


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One link. What is None is not known."""

    link: Link
    gbps: float | None = None  # while it was busy
    ceiling_gbps: float | None = None
    predicted_gbps: float | None = None
    origin: Origin = Origin.MEASURED

    @property
    def is_known(self) -> bool:
        return not (self.gbps is None and self.ceiling_gbps is None and self.predicted_gbps is None)


@dataclass(frozen=True, slots=True)
class Limit:
    """What holds the next token up: a link, or None when computing does."""

    link: Link | None
    reason: str


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How far the prompt has been read, over all chunks so far. No rate before the first chunk is through."""

    prompt_tokens: int
    reused_tokens: int
    read_tokens: int  # beside the reused ones
    bytes: int = 0
    tokens_per_second: float | None = None

    @property
    def share(self) -> float:
        return min(1.0, (self.reused_tokens + self.read_tokens) / self.prompt_tokens) if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """`prompt` is there while the prompt is being read; `bars` are the bytes of each token by link, oldest first."""

    prompt: PromptReading | None = None
    tokens_per_second: float | None = None
    predicted_range: tuple[float, float] | None = None
    bytes_per_token: float | None = None
    predicted_bytes: int | None = None
    bars: tuple[dict[Link, int], ...] = ()
    links: tuple[LinkReading, ...] = ()
    limit: Limit | None = None
    found: dict[Link, float] | None = None  # share of the expert look-ups served from each tier
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    waited_seconds: float | None = None  # mean per token
