"""Bytes and seconds per link per token. Predicted and measured traffic are this one type; nothing here knows a device."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum


class Link(StrEnum):
    """A path that weight bytes take. RAM is DRAM to CPU, disk is drive to RAM."""

    VRAM = "vram"
    PCIE = "pcie"
    RAM = "ram"
    DISK = "disk"


class Phase(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Origin(StrEnum):
    """How a figure came to be: timed and counted, computed from other counts, or forecast by the planner."""

    MEASURED = "measured"
    DERIVED = "derived"
    PREDICTED = "predicted"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Payload bytes over one link and the seconds in which it was busy (not the sum over parallel transfers)."""

    bytes: int = 0
    seconds: float = 0.0
    origin: Origin = Origin.MEASURED

    @property
    def gbps(self) -> float:
        """GB/s while busy; 0 when idle."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one forward pass moved: a decode step yields one token, a prefill pass reads `tokens` of the prompt.

    `hits` and `misses` count expert look-ups: in memory, and on disk; `vram_hits` of the hits needed no RAM either.
    `stall_seconds` is compute time lost waiting for a link. `seconds` is the wall time of the pass. `unasked_bytes` of the
    disk's were read ahead, and routing did not ask for them.
    """

    phase: Phase
    links: dict[Link, LinkUse] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    stall_seconds: float = 0.0
    seconds: float = 0.0
    tokens: int = 1
    unasked_bytes: int = 0
    vram_hits: int = 0


def merged(records: Sequence[Traffic]) -> Traffic:
    """Several passes of one phase as one; bytes, seconds, look-ups and tokens add up."""
    assert records, "nothing to merge"
    links = {
        link: LinkUse(
            sum(record.links[link].bytes for record in records if link in record.links),
            sum(record.links[link].seconds for record in records if link in record.links),
            next(record.links[link].origin for record in records if link in record.links),
        )
        for link in Link
        if any(link in record.links for record in records)
    }
    return Traffic(
        records[0].phase,
        links,
        sum(record.hits for record in records),
        sum(record.misses for record in records),
        sum(record.stall_seconds for record in records),
        sum(record.seconds for record in records),
        sum(record.tokens for record in records),
        sum(record.unasked_bytes for record in records),
        sum(record.vram_hits for record in records),
    )


class Meter:
    """Counts one pass at a time: `begin`, any number of `add`/`lookups`/`stall`, then `end` returns its `Traffic`.

    Owned by the generation thread; readers hand their figures over through the caller, so there is no lock.
    """

    def __init__(self) -> None:
        self._bytes = dict.fromkeys(Link, 0)
        self._seconds = dict.fromkeys(Link, 0.0)
        self._hits = self._misses = self._tokens = self._unasked = self._vram_hits = 0
        self._stall = self._begun = 0.0
        self._phase = Phase.DECODE
        self.derived = {Link.RAM}  # no portable counter exists: its bytes are the weights computed on

    def begin(self, phase: Phase, tokens: int = 1) -> None:
        """Start counting a pass over `tokens` tokens, forgetting whatever was counted before."""
        for link in Link:
            self._bytes[link] = 0
            self._seconds[link] = 0.0
        self._hits = self._misses = self._unasked = self._vram_hits = 0
        self._stall = 0.0
        self._phase, self._tokens = phase, tokens
        self._begun = time.perf_counter()

    def add(self, link: Link, count: int, seconds: float) -> None:
        self._bytes[link] += count
        self._seconds[link] += seconds

    def lookups(self, hits: int, misses: int) -> None:
        self._hits += hits
        self._misses += misses

    def in_vram(self, hits: int) -> None:
        """Of the hits."""
        self._vram_hits += hits

    def unasked(self, count: int) -> None:
        """Bytes that were read ahead in vain; `add` counts them too."""
        self._unasked += count

    def stall(self, seconds: float) -> None:
        self._stall += seconds

    @contextmanager
    def timed(self, link: Link, count: int) -> Iterator[None]:
        """Add `count` bytes and the time that the body takes."""
        begun = time.perf_counter()
        yield
        self.add(link, count, time.perf_counter() - begun)

    def end(self) -> Traffic:
        """The pass since `begin`."""
        links = {
            link: LinkUse(self._bytes[link], self._seconds[link], Origin.DERIVED if link in self.derived else Origin.MEASURED)
            for link in Link
            if self._bytes[link]
        }
        seconds = time.perf_counter() - self._begun
        return Traffic(
            self._phase, links, self._hits, self._misses, self._stall, seconds, self._tokens, self._unasked, self._vram_hits
        )
