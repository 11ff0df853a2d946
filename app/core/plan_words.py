"""A plan → its picture and its words: tiers, links, speed, what limits it, what each choice costs. Pure; no Qt.

Nothing is computed here that the plan does not say; where it says nothing, so do the words.
"""

from dataclasses import dataclass

from app.core.figures import format_bytes, format_number, format_range, format_rate, format_seconds, format_tokens_short
from app.core.machine_words import pcie_words
from engine.protocol import Change, DriveKind, FirstToken, Gain, KvType, Link, Machine, Plan, Tier, Verdict

TIER_NAMES = {Link.VRAM: "VRAM", Link.PCIE: "PCIe", Link.RAM: "RAM", Link.DISK: "Drive"}
KV_STOPS = (KvType.Q8, KvType.BF16, KvType.FP32)  # the fewest bits first
_KV_WORDS = {KvType.Q8: "8 bit", KvType.BF16: "16 bit", KvType.FP32: "32 bit"}
_LEAST_STEP = 0.05  # tokens/s: a smaller price is none


@dataclass(frozen=True, slots=True)
class Segment:
    """Part of a bar. `color` is the name of a palette's colour; `label` is for a wide one, `short` for a narrow one."""

    label: str
    short: str
    bytes: int
    color: str


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    segments: tuple[Segment, ...]
    room: int  # bytes that the whole bar stands for
    right: str
    is_over: bool = False  # more is in it than there is room

    @property
    def words(self) -> str:
        held = ", ".join(segment.label for segment in self.segments)
        return f"{self.name}: {held or 'nothing'}; {self.right}"


@dataclass(frozen=True, slots=True)
class LinkLine:
    """Between two bars, or above the first: what its bytes travel over."""

    link: Link
    text: str
    rate: str  # '24.6 GB/s', or why there is none


Row = Bar | LinkLine


def caption(plan: Plan) -> str:
    return f"{plan.num_experts} experts × {plan.num_layers} layers, {format_bytes(plan.expert_bytes)} each"


def picture(plan: Plan, machine: Machine | None, *, is_here: bool = False) -> tuple[Row, ...]:
    """From the fastest tier to the slowest, with the links between; the processor on top where it computes alone.

    Of a model that `is_here` the drive has its bytes already, and what is free is beside them.
    """
    rows: list[Row] = []
    links = [tier.link for tier in plan.tiers]
    for tier in plan.tiers:
        if tier.link is Link.RAM and Link.VRAM in links:
            rows.append(LinkLine(Link.PCIE, _pcie(machine), _rate(plan, Link.PCIE)))
        elif tier.link is Link.RAM:
            rows.append(LinkLine(Link.RAM, "Processor reads memory at", _rate(plan, Link.RAM)))
        elif tier.link is Link.DISK:
            rows.append(LinkLine(Link.DISK, "Drive to memory", _rate(plan, Link.DISK)))
        rows.append(_bar(tier, plan, machine, is_here=is_here))
    return tuple(rows)


def subtitle(verdict: Verdict, model_bytes: int, *, is_about: bool) -> str:
    size = f"{'About ' if is_about else ''}{format_bytes(model_bytes)}, read in place as published." if model_bytes else ""
    return " ".join(filter(None, (size, verdict.text)))


def speed_words(plan: Plan | None) -> str:
    """'16–20', or empty where nothing is predicted."""
    return format_range(*plan.predicted_tokens_per_second) if plan is not None and plan.predicted_tokens_per_second else ""


def first_words(plan: Plan) -> str:
    """'First word after 0.8–1.2 s at 1K tokens, 5–9 s at 8K.'"""
    if not plan.first_tokens:
        return ""
    parts = [f"{_seconds_range(first)} at {format_tokens_short(first.prompt_tokens)}" for first in plan.first_tokens]
    parts[0] += " tokens"
    return f"First word after {', '.join(parts)}."


def limit_words(plan: Plan) -> tuple[str, str]:
    """The link that decides, and why; both empty where nothing is predicted."""
    if plan.limiting is None or plan.predicted is None:
        return "", ""
    use, gbps = plan.predicted.links.get(plan.limiting), plan.ceilings_gbps.get(plan.limiting)
    if use is None:
        return "", ""
    at = f" at up to {format_rate(gbps)} GB/s" if gbps else ""
    if plan.limiting is Link.DISK:
        looked_up = plan.predicted.hits + plan.predicted.misses
        share = f"{100 * plan.predicted.misses / looked_up:.0f} % of its experts" if looked_up else "some experts"
        return "the drive", f"For each token it brings {format_bytes(use.bytes)}{at}, because {share} are not in memory."
    what = {Link.RAM: "memory", Link.VRAM: "graphics memory", Link.PCIE: "PCIe"}[plan.limiting]
    moved = "moves" if plan.limiting is Link.PCIE else "reads"
    return what, f"Each token {moved} {format_bytes(use.bytes)}{at}."


def basis_words(plan: Plan) -> str:
    """What the range rests on."""
    is_streaming = plan.predicted is not None and plan.predicted.misses > 0
    basis = f"How often experts are found in memory is taken from {plan.basis}. " if is_streaming and plan.basis else ""
    return f"{basis}The first question after loading can take some seconds longer." if plan.predicted is not None else ""


def gain_rows(plan: Plan) -> tuple[tuple[str, str], ...]:
    """('32 GB more RAM', '3–4 → 9–11')."""
    now = speed_words(plan)
    return tuple((_capital(gain.text), f"{now} → {format_range(*gain.tokens_per_second)}") for gain in plan.gains)


def context_value(plan: Plan) -> str:
    return f"{format_tokens_short(plan.context)} tokens"


def context_words(tokens: int | None) -> str:
    return f"{format_tokens_short(tokens)} tokens" if tokens else "automatic"


def context_price(plan: Plan) -> str:
    """'1.1 GB RAM · −0.6 tok/s per doubling'."""
    held = f"{format_bytes(plan.kv_bytes)} {_where_cache(plan)}"
    price = _step(plan, Change.CONTEXT, up=True)
    return " · ".join(filter(None, (held, _per(plan, price, "per doubling") if price is not None else "")))


def chunk_value(plan: Plan) -> str:
    return f"{format_tokens_short(plan.prefill_chunk)} tokens"


def chunk_price(plan: Plan) -> str:
    """'0.2 GB RAM · −0.1 tok/s per doubling'."""
    price = _step(plan, Change.PREFILL_CHUNK, up=True)
    held = f"{format_bytes(plan.workspace_bytes)} {_where_cache(plan)}"
    return " · ".join(filter(None, (held, _per(plan, price, "per doubling") if price is not None else "")))


def kv_value(plan: Plan) -> str:
    return _KV_WORDS[plan.kv_type]


def kv_words(kv_type: KvType | None) -> str:
    return _KV_WORDS[kv_type] if kv_type is not None else "automatic"


def kv_price(plan: Plan) -> str:
    """'−0.4 GB RAM · +0.3 tok/s with 8 bit', the next step to fewer bits, or to more where there are none."""
    place = KV_STOPS.index(plan.kv_type)
    other = KV_STOPS[place - 1] if place else KV_STOPS[1]
    price = next((gain for gain in plan.prices if gain.change is Change.KV_TYPE and gain.text.endswith(other)), None)
    if price is None:
        return ""
    held = f"{'+' if price.amount > 0 else '−'}{format_bytes(abs(price.amount))} {_where_cache(plan)}"
    return f"{' · '.join(filter(None, (held, _per(plan, price, '').rstrip())))} with {_KV_WORDS[other]}"


def measured_words(plan: Plan) -> str:
    """'Measured here: 17.2 tok/s in the middle of the last 5 answers.'; empty before the first."""
    if plan.measured_tokens_per_second is None:
        return ""
    count = plan.measured_answers
    of = "in the last answer" if count == 1 else f"in the middle of the last {count} answers"
    return f"Measured here: {format_rate(plan.measured_tokens_per_second)} tok/s {of}."


def experts_value(plan: Plan) -> str:
    return format_bytes(plan.expert_ram_bytes)


def experts_price(plan: Plan) -> str:
    """'3 960 experts · +1.0 tok/s per GB'."""
    total, held = plan.num_layers * plan.num_experts, sum(plan.slots_per_layer)
    words = f"all {format_number(total)} experts" if held >= total else f"{format_number(held)} experts"
    price = _step(plan, Change.EXPERT_RAM, up=True) or _step(plan, Change.EXPERT_RAM, up=False)
    return " · ".join(filter(None, (words, _per_gb(plan, price) if price is not None else "")))


def vram_value(plan: Plan) -> str:
    taken = on_card(plan)
    return format_bytes(taken.used) if taken is not None else "none"


def vram_room(plan: Plan) -> int:
    """Bytes that may be taken."""
    taken = on_card(plan)
    return taken.room if taken is not None else 0


def vram_words(limit: str | None, wished: int | None) -> str:
    """Of a wish that has no plan; `wished` is in bytes where that is known."""
    if wished is not None:
        return format_bytes(wished) if wished else "none"
    return limit or "automatic"


def vram_price(plan: Plan) -> str:
    """'5.3 GB of experts · +1.2 tok/s per GB', or what doing without would cost where there is no more of it."""
    taken, more = on_card(plan), _step(plan, Change.VRAM_LIMIT, up=True)
    if taken is None:
        return _per(plan, more, f"with {format_bytes(more.amount)}") if more is not None else ""
    is_all = taken.num_experts >= plan.num_layers * plan.num_experts
    held = "all experts" if is_all else f"{format_bytes(taken.experts)} of experts"
    if more is not None:
        return " · ".join(filter(None, (held, _per_gb(plan, more))))
    none = next((gain for gain in plan.prices if gain.change is Change.VRAM_LIMIT and gain.amount == -taken.used), None)
    return " · ".join(filter(None, (held, _per(plan, none, "without") if none is not None else "")))


def on_card(plan: Plan) -> Tier | None:
    """What the graphics cards hold; None where none is used."""
    return next((tier for tier in plan.tiers if tier.link is Link.VRAM), None)


def _bar(tier: Tier, plan: Plan, machine: Machine | None, *, is_here: bool) -> Bar:
    total = plan.num_layers * plan.num_experts
    name, parts = TIER_NAMES[tier.link], []
    if tier.dense:
        parts.append(Segment(f"dense {_gb(tier.dense)}", "dense", tier.dense, "muted"))
    if tier.kv or tier.workspace:
        nbytes = tier.kv + tier.workspace
        parts.append(Segment(f"context {_gb(nbytes)}", "KV", nbytes, "faint"))
    if tier.experts:
        share = f" · {tier.num_experts / total:.0%}".replace("%", " %") if total else ""
        parts.append(Segment(f"experts {_gb(tier.experts)}{share}", _gb(tier.experts), tier.experts, tier.link.value))
    if tier.model:
        parts.append(Segment(f"whole model {_gb(tier.model)}", _gb(tier.model), tier.model, "disk"))
    if tier.link is Link.DISK:
        room = tier.room + tier.model if is_here else max(tier.room, tier.model)
        is_over = not is_here and tier.model > tier.room
        return Bar(_drive_name(machine), tuple(parts), room, f"{format_bytes(tier.room)} free", is_over)
    return Bar(name, tuple(parts), max(tier.room, tier.used), format_bytes(tier.room), tier.used > tier.room)


def _drive_name(machine: Machine | None) -> str:
    kinds = {DriveKind.NVME: "NVMe", DriveKind.SATA: "SATA", DriveKind.USB: "USB", DriveKind.NETWORK: "Network"}
    return kinds.get(machine.drives[0].kind, "Drive") if machine is not None and machine.drives else "Drive"


def _pcie(machine: Machine | None) -> str:
    cards = [gpu for gpu in machine.gpus if gpu.is_usable] if machine is not None else []
    return (pcie_words(cards[0].pcie) if len(cards) == 1 else "") or "PCIe"


def _rate(plan: Plan, link: Link) -> str:
    gbps = plan.ceilings_gbps.get(link)
    return f"{format_rate(gbps)} GB/s" if gbps else "not measured yet"


def _where_cache(plan: Plan) -> str:
    return "VRAM" if any(tier.link is Link.VRAM and tier.kv for tier in plan.tiers) else "RAM"


def _step(plan: Plan, change: Change, *, up: bool) -> Gain | None:
    return next((gain for gain in plan.prices if gain.change is change and (gain.amount > 0) is up), None)


def _per(plan: Plan, price: Gain, unit: str) -> str:
    difference = _middle(price.tokens_per_second) - _middle(_speed(plan))
    return f"{_signed(difference)} tok/s {unit}" if abs(difference) >= _LEAST_STEP else ""


def _per_gb(plan: Plan, price: Gain) -> str:
    if not price.amount:
        return ""
    per_gb = (_middle(price.tokens_per_second) - _middle(_speed(plan))) / (price.amount / 1e9)
    return f"{_signed(per_gb)} tok/s per GB" if abs(per_gb) >= _LEAST_STEP / 10 else ""


def _speed(plan: Plan) -> tuple[float, float]:
    return plan.predicted_tokens_per_second or (0.0, 0.0)


def _middle(speed: tuple[float, float]) -> float:
    return (speed[0] + speed[1]) / 2


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else '−'}{abs(value):.{1 if abs(value) >= 0.095 else 2}f}"


def _gb(nbytes: int) -> str:
    """The bare number of a bar in GB, as the room beside it says the unit; smaller amounts with their own."""
    return f"{nbytes / 1e9:.1f}" if nbytes >= 0.95e8 else format_bytes(nbytes)


def _seconds_range(first: FirstToken) -> str:
    if first.high < 59.5:
        return f"{format_range(first.low, first.high)} s"
    return f"{format_seconds(first.low)} to {format_seconds(first.high)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
