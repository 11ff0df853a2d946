"""What this computer gives for a model: measured where the notebook does not know it yet, and noted there."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine import bench
from engine.accelerators import open_devices
from engine.bench_formats import SECONDS as FORMATS_SECONDS
from engine.bench_formats import measure_formats
from engine.bench_pieces import Stopped, on_card, on_cpu
from engine.card_bench import PARTS as CARD_PARTS
from engine.card_bench import SECONDS as CARD_SECONDS
from engine.card_bench import measure_card
from engine.card_rates import CardRates
from engine.errors import EngineError
from engine.experts.vram import Device
from engine.hardware.probe import probe
from engine.kernels.kernels import Kernels, open_kernels
from engine.knowledge import Notebook, model_key
from engine.plan.forecast import Knowledge
from engine.plan.plan import reserve_bytes
from engine.plan.predict import NO_CORRECTION
from engine.rates import Curve, Rates
from engine.rehearsal import RECALL
from engine.source import Source
from engine.tiers.copy import DeviceLost
from engine.tiers.disk import DiskReader

_log = logging.getLogger(__name__)
LAYERS, FORMATS = "Drive, memory and layers", "Kernels for each format"  # stages, in the words that people see
_LEAST_SECONDS = 5.0  # of links and layers
_FORMATS_SHARE = 8  # parts of progress for them


@dataclass(frozen=True, slots=True)
class Measured:
    """`formats` are GB/s of the CPU's kernels by themselves, `cards` the rates of each card by its name."""

    rates: Rates
    formats: dict[str, Curve]
    cards: dict[str, CardRates]


def measure_all(
    source: Source,
    folder: Path,
    notebook: Notebook,
    deadline: float,
    progress: Callable[[str, int, int], object] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Measured:
    """This computer with a model's experts and the drive of `folder`, until about `deadline` of the monotonic clock, and noted.

    Raises `EngineError` and `bench_pieces.Stopped`; what was noted by then stays.
    """
    kernels, cards = open_kernels()[0], open_devices(probe())[0][:1]
    later = FORMATS_SECONDS + len(cards) * (CARD_SECONDS + FORMATS_SECONDS)
    seconds = max(_LEAST_SECONDS, deadline - time.monotonic() - later)

    def step(done: int, total: int) -> None:
        progress(LAYERS, done, total + _FORMATS_SHARE)

    rates = measure(source, kernels, seconds, step, should_stop)
    notebook.note_rates(source.footprint, folder, rates)
    progress(FORMATS, 8, 10)
    formats = measure_formats(on_cpu(kernels), should_stop, min(FORMATS_SECONDS, max(0.0, deadline - time.monotonic())))
    if should_stop():
        raise Stopped
    notebook.note_kernels(formats)
    of_cards: dict[str, CardRates] = {}
    for card in cards:  # the last, since compiling its kernels may take longer than there is time
        name = card.accelerator.name
        progress(name, 9, 10)
        try:
            of_cards[name] = measure_card_of(source, kernels, card, should_stop=should_stop)
            notebook.note_card(source.footprint, name, of_cards[name])
            with _failures_named(name):
                curves = measure_formats(on_card(card), should_stop)
            if not should_stop():
                notebook.note_card_kernels(name, curves)
        except (EngineError, DeviceLost) as problem:
            _log.warning("%s was not measured: %s", name, problem)
    return Measured(rates, formats, of_cards)


def measure(
    source: Source,
    kernels: Kernels,
    seconds: float = bench.SECONDS,
    progress: Callable[[int, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
    recall: float = RECALL,
) -> Rates:
    """This computer's rates for a model's format and sizes, before anything of it is loaded.

    Raises `EngineError` and `bench_pieces.Stopped`.
    """
    machine, reader = probe(), DiskReader()
    try:
        limit = machine.ram_available - reserve_bytes(machine)
        return bench.measure(source, reader, kernels, limit, seconds, progress, should_stop, recall)
    finally:
        reader.close()


def knowledge_of(
    source: Source,
    notebook: Notebook | None,
    kernels: Kernels | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
    card: Device | None = None,
) -> Knowledge:
    """What a forecast needs: rates noted earlier, or else measured now, with those of a card where one is given.

    Loads nothing. Raises `EngineError`.
    """
    footprint, before = source.footprint, 0
    name = "" if card is None else card.accelerator.name
    is_new = card is not None and (notebook is None or notebook.should_measure_card(footprint, name))

    def in_ram(done: int, total: int) -> None:
        nonlocal before
        before = total
        progress(done, total + CARD_PARTS * is_new)

    known = _knowledge_without_card(source, notebook, kernels, in_ram)
    if card is None or not is_new or known.rates is None:
        return known
    try:
        rates = measure_card_of(
            source, kernels or open_kernels()[0], card, lambda done, total: progress(before + done, before + total)
        )
    except (EngineError, DeviceLost) as problem:
        why = problem.text if isinstance(problem, EngineError) else str(problem)
        return replace(known, card=None, unknown_card=f"{name} could not be measured: {why.rstrip('.')}")
    if notebook is not None:
        notebook.note_card(footprint, name, rates)
    return replace(known, card=rates, unknown_card="", on_card=replace(known.on_card, correction=NO_CORRECTION))


def measure_card_of(
    source: Source,
    kernels: Kernels,
    card: Device,
    progress: Callable[[int, int], None] = lambda *_: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CardRates:
    """See `card_bench.measure_card`."""
    machine, reader = probe(), DiskReader()
    limit = machine.ram_available - reserve_bytes(machine)
    try:
        with _failures_named(card.accelerator.name):
            rates = measure_card(source, reader, kernels, card, limit, progress=progress, should_stop=should_stop)
    finally:
        reader.close()
    if not rates.is_usable:
        text = f"{card.accelerator.name} was measured, and some figure is one that no card can have."
        raise EngineError("bench.card", text, "Measure again while nothing else uses it.")
    return rates


@contextmanager
def _failures_named(name: str) -> Iterator[None]:
    """What torch raises of that card, as `EngineError` where its memory is full and else as `DeviceLost`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        text = f"{name} has too little memory free to be measured."
        raise EngineError("bench.memory", text, "Close what uses it.") from error
    except RuntimeError as error:
        raise DeviceLost(str(error).partition("\n")[0]) from error  # torch has no one type for it


def _knowledge_without_card(
    source: Source, notebook: Notebook | None, kernels: Kernels | None, progress: Callable[[int, int], None]
) -> Knowledge:
    folder, footprint = source.checkpoint.folder, source.footprint
    known = Knowledge()
    if notebook is not None:
        known = notebook.knowledge(footprint, folder, model_key(source.checkpoint))
        if not notebook.should_measure(footprint, folder):
            return known
    seconds = bench.SHORT_SECONDS if notebook is None else bench.SECONDS
    try:
        rates = measure(source, kernels or open_kernels()[0], seconds, progress)
    except EngineError as error:
        if error.code != "bench.memory":
            raise
        return replace(known, rates=None, unknown=error.text.rstrip("."))
    if notebook is not None:
        notebook.note_rates(footprint, folder, rates)
    in_ram, on_card = (replace(seen, correction=NO_CORRECTION) for seen in (known.in_ram, known.on_card))
    return replace(known, rates=rates, unknown="", in_ram=in_ram, on_card=on_card)
