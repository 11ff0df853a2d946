"""The last 60 tokens' traffic → one `Reading`. Plain arithmetic over protocol records; knows no widget and no clock."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from PySide6.QtCore import QObject, Signal

from app.core.reading import Limit, LinkReading, PromptReading, Reading
from engine.protocol import Link, Meter, Origin, Phase, Plan, Started, Traffic

WINDOW = 60  # tokens
RECENT = 10  # tokens; long enough to be steady, short enough to be "now"
_REASONS = {
    Link.VRAM: "weights read on the GPU",
    Link.PCIE: "experts copied to the GPU",
    Link.RAM: "experts computed on the CPU",
    Link.DISK: "experts read from the drive",
}
_WAITED_FOR = (Link.DISK, Link.PCIE)  # only the slower of those in use makes computing wait
_COMPUTED_FROM = (Link.VRAM, Link.RAM)
_MOST = 0.5  # of a token's time: below it no link explains the rate


class MeterModel(QObject):
    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._plan: Plan | None = None
        self._tokens: deque[Traffic] = deque(maxlen=WINDOW)
        self._started: Started | None = None
        self._prompt: list[Traffic] = []
        self._prompt_read = 0
        self._best_gbps: dict[Link, float] = {}

    def set_plan(self, plan: Plan | None) -> None:
        """Another model: what was measured says nothing about it."""
        self._plan = plan
        self._tokens.clear()
        self._best_gbps = dict(plan.ceilings_gbps) if plan else {}
        self._stop_reading()

    def start(self, started: Started) -> None:
        """A prompt is being read from now on."""
        self._started, self._prompt, self._prompt_read = started, [], started.reused_tokens
        self.changed.emit()

    def advance(self, read_tokens: int) -> None:
        """So many tokens of the prompt are in the cache, reused ones included. Told per chunk, its record somewhat later."""
        self._prompt_read = max(self._prompt_read, read_tokens)
        self.changed.emit()

    def add(self, meter: Meter) -> None:
        for record in meter.records:
            self._raise_ceilings(record)
            if record.phase is Phase.PREFILL:
                self._prompt.append(record)
            else:
                self._started = None
                self._tokens.append(record)
        self.changed.emit()

    def _raise_ceilings(self, record: Traffic) -> None:
        """A quarter of a second at start may miss a link's best; what was seen since then is possible too."""
        for link, use in record.links.items():
            is_measured = use.origin is Origin.MEASURED  # a derived figure may count what a cache served
            if is_measured and link in self._best_gbps and use.gbps > self._best_gbps[link]:
                self._best_gbps[link] = use.gbps

    def finish(self) -> None:
        """The answer ended, perhaps before its first token."""
        self._stop_reading()

    def _stop_reading(self) -> None:
        self._started, self._prompt = None, []
        self.changed.emit()

    def reading(self) -> Reading:
        plan, tokens = self._plan, list(self._tokens)
        predicted = plan.predicted if plan else None
        seconds = [record.seconds for record in tokens]
        moved = sum(_bytes(record) for record in tokens)
        return Reading(
            prompt=self._prompt_reading(),
            tokens_per_second=sum(record.tokens for record in tokens) / sum(seconds) if sum(seconds) > 0 else None,
            predicted_range=plan.predicted_tokens_per_second if plan else None,
            bytes_per_token=moved / len(tokens) if tokens else None,
            predicted_bytes=_bytes(predicted) if predicted else None,
            bars=tuple({link: use.bytes for link, use in record.links.items()} for record in tokens),
            links=self._links(self._prompt if self._started else tokens[-RECENT:]),
            limit=limit(tokens[-RECENT:]),
            found=found_in(tokens),
            p50_seconds=percentile(seconds, 0.50),
            p95_seconds=percentile(seconds, 0.95),
            waited_seconds=sum(record.stall_seconds for record in tokens) / len(tokens) if tokens else None,
        )

    def _prompt_reading(self) -> PromptReading | None:
        started = self._started
        if started is None:
            return None
        tokens = sum(record.tokens for record in self._prompt)  # of the chunks whose records are here
        seconds = sum(record.seconds for record in self._prompt)
        return PromptReading(
            prompt_tokens=started.prompt_tokens,
            reused_tokens=started.reused_tokens,
            read_tokens=max(self._prompt_read - started.reused_tokens, tokens),
            bytes=sum(_bytes(record) for record in self._prompt),
            tokens_per_second=tokens / seconds if seconds > 0 else None,
        )

    def _links(self, records: Sequence[Traffic]) -> tuple[LinkReading, ...]:
        is_decoding = self._started is None  # only a decode token is predicted
        predicted = self._plan.predicted.links if self._plan and self._plan.predicted and is_decoding else {}
        readings = []
        for link in Link:
            moved, busy, origin = _use(records, link)
            readings.append(
                LinkReading(
                    link=link,
                    gbps=moved / busy / 1e9 if busy > 0 else None,
                    ceiling_gbps=self._best_gbps.get(link),
                    predicted_gbps=predicted[link].gbps or None if link in predicted else None,
                    origin=origin,
                )
            )
        return tuple(readings)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed (nearest rank)."""
    return sorted(values)[math.ceil(share * len(values)) - 1] if values else None


def limit(records: Sequence[Traffic]) -> Limit | None:
    """What took most of these tokens' time; None when there is no time to explain.

    A copy that runs while computing goes on costs nothing, so the drive and PCIe hold a token up only for the time that
    computing waited: `stall_seconds`, a part of their busy time. The rest is computing, which reads from RAM and VRAM.
    """
    total = sum(record.seconds for record in records)
    if total <= 0:
        return None
    busy = {link: _use(records, link)[1] for link in Link}
    waited_for = next((link for link in _WAITED_FOR if busy[link] > 0), None)
    if waited_for is not None and sum(record.stall_seconds for record in records) > _MOST * total:
        return Limit(waited_for, _REASONS[waited_for])
    link = max(_COMPUTED_FROM, key=lambda link: busy[link])
    if busy[link] >= _MOST * total:
        return Limit(link, _REASONS[link])
    return Limit(None, "no link explains half of the time")


def found_in(records: Sequence[Traffic]) -> dict[Link, float] | None:
    """Share of the expert look-ups served from VRAM, RAM and disk; None when nothing was looked up.

    A miss came from the drive; of the hits, those that no card held were served from RAM.
    """
    hits = sum(record.hits for record in records)
    misses = sum(record.misses for record in records)
    if hits + misses == 0:
        return None
    has_vram = any(record.links[link].bytes for record in records for link in (Link.VRAM, Link.PCIE) if link in record.links)
    if not has_vram:
        return {Link.RAM: hits / (hits + misses), Link.DISK: misses / (hits + misses)}
    in_vram = sum(record.vram_hits for record in records)
    counts = {Link.VRAM: in_vram, Link.RAM: hits - in_vram, Link.DISK: misses}
    return {link: count / (hits + misses) for link, count in counts.items()}


def _bytes(record: Traffic) -> int:
    return sum(use.bytes for use in record.links.values())


def _use(records: Iterable[Traffic], link: Link) -> tuple[int, float, Origin]:
    """Bytes, busy seconds and the weaker origin of all records together."""
    uses = [record.links[link] for record in records if link in record.links]
    origin = Origin.DERIVED if any(use.origin is Origin.DERIVED for use in uses) else Origin.MEASURED
    return sum(use.bytes for use in uses), sum(use.seconds for use in uses), origin
