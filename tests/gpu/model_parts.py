"""Parts of `tests.gpu.run_all` with a model: a published shape with random weights, cut in layers, routing uniform."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from engine.experts.device_lanes import DeviceLanes
from engine.experts.miss import Split
from engine.measure import knowledge_of
from engine.meter import Link, Phase, Traffic, merged
from engine.plan.predict import Hits, decoded
from engine.protocol import Plan
from engine.session import Session
from engine.source import inspect
from engine.tiers.vram import VramArena
from tests.gpu.setting import Row, Setting, wall
from tests.helpers.tiny import session_on
from tests.perf.synthetic import make

_SHARES = (0.25, 0.5, 1.0)
_LONG = 60.0  # seconds that reading all experts may take


@contextmanager
def running(setting: Setting, share: float, context: int = 512) -> Iterator[tuple[Session, Plan, int]]:
    """A session with all experts in RAM and this share of them in VRAM; the last is how many there are."""
    sizes = setting.sizes
    folder = make(setting.folder / f"{setting.encoding}-{sizes.layers}", sizes.shape, setting.encoding, sizes.layers)
    total = sizes.layers * sizes.shape.num_experts
    with session_on(
        folder, kernels=setting.cpu, devices=[setting.device], vram_slots=max(2, int(share * total)),
        expert_ram="100%", context=context,
    ) as (session, plan):  # fmt: skip
        runner = session._parts.experts
        every = [(layer, expert) for layer in range(sizes.layers) for expert in range(sizes.shape.num_experts)]
        runner.load([expert for expert in every if runner._cache.lookup(*expert) is None], _LONG, lambda _: None)
        if share >= 1:  # as a warm start has it
            lanes_of(session).warm(dict.fromkeys(every, 1.0), lambda wanted: runner.bring(wanted, _LONG))
        yield session, plan, total


def prompt(setting: Setting, count: int) -> list[int]:
    return torch.randint(3, 259, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def answer(session: Session, tokens: list[int], count: int) -> tuple[list[int], list[Any]]:
    """Greedy tokens, and what each moved."""
    logits, _ = session.sync(tokens)
    ids, records = [], []
    for _ in range(count):
        ids.append(int(logits.argmax()))
        logits, traffic = session.step(ids[-1])
        records.append(traffic)
    return ids, records


def decode(setting: Setting) -> list[Row]:
    """Tokens/s with 25, 50 and 100 % of the experts in VRAM, beside what bytes and rates foretell."""
    return [_decoded(setting, share, f"{share:.0%} in VRAM", lambda _: None) for share in _SHARES]


def splits(setting: Setting) -> list[Row]:
    """A quarter in VRAM, with each way to serve the misses held fast."""

    def hold(split: Split) -> Callable[[Session], None]:
        def fix(session: Session) -> None:
            lanes = lanes_of(session)
            lanes.path.in_use, lanes.path._now, lanes.on_device = split, split, None

        return fix

    return [_decoded(setting, 0.25, str(split), hold(split)) for split in Split]


def _decoded(setting: Setting, share: float, what: str, prepare: Callable[[Session], None]) -> Row:
    count = setting.sizes.tokens
    with running(setting, share) as (session, plan, _):
        prepare(session)
        _, records = answer(session, prompt(setting, 16), setting.sizes.warm + count)
        lookups = setting.sizes.layers * setting.sizes.shape.top_k
        seen = merged([replace(record, phase=Phase.DECODE) for record in records[-count:]])
        dense = session._parts.dense_bytes
        hits = seen.vram_hits / count
        row: Row = {
            "what": what, "tokens/s": count / seen.seconds, "VRAM hits": hits / lookups,
            "PCIe MB/token": _bytes(seen, Link.PCIE) / count / 1e6, "RAM MB/token": _bytes(seen, Link.RAM) / count / 1e6,
        }  # fmt: skip
        row |= _foretold(setting, session, plan, merged(records[-count:]))
    vram, link = setting.rates.get("vram"), setting.rates.get("link")
    if vram and link:
        moved = (lookups - hits) * plan.expert_bytes
        foretold = (dense + lookups * plan.expert_bytes) / vram / 1e9 + moved / link / 1e9
        row |= {"tokens/s if all gathered": 1 / foretold, "of that": row["tokens/s"] * foretold}
    return row


def _foretold(setting: Setting, session: Session, plan: Plan, seen: Traffic) -> Row:
    """By what is measured of card and computer before, for the hit rates that the answer had."""
    source, lookups = inspect(setting.folder / f"{setting.encoding}-{setting.sizes.layers}"), seen.hits + seen.misses
    if setting.known is None:
        setting.known = knowledge_of(source, None, setting.cpu, card=setting.device)
    rates, card = setting.known.rates, setting.known.card
    if rates is None or card is None:
        return {"predicted": setting.known.unknown or setting.known.unknown_card}
    hits, context = Hits(seen.vram_hits / lookups, seen.hits / lookups), len(session.tokens)
    return {"predicted": 1 / decoded(plan, source.footprint, rates, hits, context, card).seconds}


def _bytes(traffic: Any, link: Link) -> int:
    return traffic.links[link].bytes if link in traffic.links else 0


def without_host(setting: Setting) -> list[Row]:
    """The same model where the device itself decides what comes and goes, which the engine does where the link serves all misses."""
    rows = []
    for share in _SHARES:
        with running(setting, share) as (session, _, _):
            lanes = lanes_of(session)
            lanes.path.in_use = lanes.path._now = Split.GPU
            ids, _ = answer(session, prompt(setting, 16), max(setting.sizes.warm, 16))
            records = [session.step(ids[-1])[1] for _ in range(setting.sizes.tokens)]
            seen, on_device = merged(records), lanes.on_device
            assert on_device is not None, "one card"
            rows.append({
                "what": f"{share:.0%} in VRAM", "decided by": "the device" if on_device.is_on else "the host",
                "recorded": session._parts.captured is not None and not session._parts.captured.is_refused,
                "tokens/s": 1 / median(record.seconds for record in records),
                "VRAM hits": seen.vram_hits / (seen.hits + seen.misses),
                "PCIe MB/token": _bytes(seen, Link.PCIE) / len(records) / 1e6,
            })  # fmt: skip
    return rows


def lanes_of(session: Session) -> DeviceLanes:
    lanes = session._parts.experts._lanes
    assert isinstance(lanes, DeviceLanes)
    return lanes


def prefill(setting: Setting) -> list[Row]:
    """Prompts of several lengths, with a quarter of the experts in VRAM and with next to none."""
    rows = []
    longest = max(setting.sizes.prompts)
    for share in (0.25, 1 / 64):
        with running(setting, share, longest + 64) as (session, _, _):
            answer(session, prompt(setting, 16), setting.sizes.warm)
            for length in setting.sizes.prompts:
                tokens = prompt(setting, length)
                session.rewind(0)
                seconds = wall(lambda: session.sync(tokens))  # noqa: B023 - its logits are on the CPU
                rows.append({"what": f"{length} tokens, {share:.0%} in VRAM", "tokens/s": length / seconds})
    return rows


def baseline(setting: Setting) -> list[Row]:
    """What copying whole layers to the card for each token comes to, nothing computed: an upper bound of that."""
    with running(setting, 1 / 64) as (session, plan, _):
        arena, count = session._parts.experts._arena, setting.sizes.shape.num_experts
        vram = VramArena(setting.device.accelerator, arena.stride, count)
        pairs = [(arena.tensor(slot), vram.tensor(slot)) for slot in range(count)]
        setting.device.accelerator.copy(pairs).finish()
        seconds = sum(setting.device.accelerator.copy(pairs).finish() for _ in range(setting.sizes.layers))
    return [{"what": f"{setting.sizes.layers} layers of {count} experts", "tokens/s": 1 / seconds,
             "GB/s": setting.sizes.layers * count * plan.expert_bytes / seconds / 1e9}]  # fmt: skip


def text(setting: Setting) -> list[Row]:
    """Everything in VRAM: greedy tokens beside those of the CPU."""
    tokens, count = prompt(setting, 16), setting.sizes.tokens
    with running(setting, 1.0) as (session, _, _):
        ours, _ = answer(session, tokens, count)
    folder = setting.folder / f"{setting.encoding}-{setting.sizes.layers}"
    with session_on(folder, kernels=setting.cpu, expert_ram="100%", context=512) as (session, _):
        theirs, _ = answer(session, tokens, count)
    same = next((index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), count)
    return [{"what": f"{count} greedy tokens", "equal": same == count, "equal from the start": same}]
