"""What is known of this computer and of a model's answers on it: two small files in the data folder. Measures nothing.

`rates.json` keeps rates by machine, drive or graphics card, and kind of model: its weight format and sizes, since small
matrices are computed at other rates than large ones. `answers.json` keeps what each answer's prediction was worth. Rates are
trusted until three answers in a row of that kind were a quarter slower, or a fifth faster, than they foretell: the next load
measures again, with the card where the answers used one. Smaller errors correct a model's next prediction and widen its range;
answers with a card say nothing of those without.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log2
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from engine.card_rates import CardRates
from engine.checkpoint.index import Checkpoint
from engine.errors import EngineError
from engine.experts.heat import load_heat
from engine.hardware.drive import drive_of
from engine.hardware.machine import Machine
from engine.plan.footprint import Footprint
from engine.plan.forecast import NOT_SEEN, Knowledge, Seen
from engine.plan.locality import PUBLISHED, Locality, of_answers, of_heat
from engine.plan.predict import NO_CORRECTION, Correction
from engine.rates import Curve, Rates, is_speed
from engine.store.state_file import StateFile

_log = logging.getLogger(__name__)
_RATES, _ANSWERS = "rates.json", "answers.json"
_VERSION = 3
_NAME_BYTES = 80
_KEPT = 32  # answers of a model
_JUDGED = 9  # of them, for a correction
_IN_A_ROW, _SLOWER, _FASTER = 3, 1.25, 0.8
_SAME = 1.15  # times: answers that are as far off after a measurement as before it
_LEAST_TOKENS = 16  # an answer below says little
_NEAR = 2.0  # powers of two between models whose experts' kernels run alike


@dataclass(frozen=True, slots=True)
class Answer:
    """`ratio` is measured seconds of a decoded token over those predicted for the hit rate that it had."""

    share: float  # of the experts in memory
    hit_rate: float
    ratio: float
    tokens: int
    kind: str  # of model, as `Kind` writes it
    seconds: float  # since 1970
    tokens_per_second: float
    card: str = ""  # the name of the graphics card that it used
    vram_share: float = 0.0  # of the experts in VRAM


@dataclass(frozen=True, slots=True)
class Kind:
    """What rates depend on beside the computer: the format, and the nearest powers of two of an expert's bytes and of the
    hidden width."""

    weight_format: str
    expert_power: int
    hidden_power: int

    def __str__(self) -> str:
        return f"{self.weight_format}/{self.expert_power}/{self.hidden_power}"

    def distance(self, other: "Kind") -> float:
        """In powers of two; another format counts as one."""
        sizes = abs(self.expert_power - other.expert_power) + abs(self.hidden_power - other.hidden_power)
        return sizes + (self.weight_format != other.weight_format)


def kind_of(footprint: Footprint) -> Kind:
    return Kind(footprint.weight_format, round(log2(footprint.expert_bytes)), round(log2(footprint.hidden_size)))


def model_key(checkpoint: Checkpoint) -> str:
    """Two models of one name in two folders have heat and answers of their own."""
    name = os.fsencode(checkpoint.name)[:_NAME_BYTES].decode("utf-8", "ignore")  # a file's name has 255 bytes
    return f"{name}-{crc32(os.fsencode(checkpoint.folder.resolve())):08x}"


def fingerprint(machine: Machine) -> str:
    """The same for a computer until something is changed in it that rates depend on."""
    cpu = machine.cpu
    facts = (machine.system, cpu.name, cpu.physical_cores, cpu.logical_cores, cpu.quota, cpu.isa, machine.ram_total >> 28)
    return f"{crc32(repr(facts).encode()):08x}"


def main_card(machine: Machine) -> str:
    """The name of the usable card with most memory free, which holds the dense weights; empty where there is none."""
    cards = [gpu for gpu in machine.gpus if gpu.is_usable]
    return max(cards, key=lambda gpu: gpu.vram_free or 0).name if cards else ""


class Notebook:
    """Both files. Reading never raises: what cannot be read is not known. Writing never stands in the way of an answer."""

    def __init__(self, data: Path, machine: Machine) -> None:
        self.data, self._machine = data, fingerprint(machine)
        self._card = main_card(machine)

    def rates(self, footprint: Footprint, folder: Path) -> tuple[Rates | None, str]:
        """For such a model on the drive of a folder, and why there are none.

        Where no model of its kind was measured, the nearest one stands in, with the rates of its format's kernels by themselves
        in place of those of another format, or of experts of quite another size.
        """
        kind, device = kind_of(footprint), drive_of(folder).device
        own = self._of_machine(_RATES)
        if not _object(own.get("rates")):
            return None, "this computer has not been measured yet"
        on_drive = self._on_drive(own, device)
        if not on_drive:
            return None, f"the drive {device} has not been measured yet"
        nearest = min(on_drive, key=kind.distance)
        if nearest.weight_format == kind.weight_format and kind.distance(nearest) <= _NEAR:
            return on_drive[nearest], ""
        curve = _curve(_object(own.get("kernels")).get(kind.weight_format))
        if curve is not None:
            return replace(on_drive[nearest], expert_gbps=curve[0][1], experts_by_rows=curve), ""
        of_format = [other for other in on_drive if other.weight_format == kind.weight_format]
        if not of_format:
            return None, f"the kernels for {kind.weight_format or 'this format'} have not been measured yet"
        return on_drive[min(of_format, key=kind.distance)], ""

    def latest(self, folder: Path) -> Rates | None:
        """Whatever was measured last with the drive of a folder."""
        found = self._on_drive(self._of_machine(_RATES), drive_of(folder).device)
        return max(found.values(), key=lambda rates: rates.seconds) if found else None

    def _on_drive(self, own: Mapping[str, Any], device: str) -> dict[Kind, Rates]:
        found = {}
        for name, value in _object(own.get("rates")).items():
            kind, rates = _kind(name.partition("|")[0]), Rates.from_json(value)
            if name.partition("|")[2] == device and kind is not None and rates is not None:
                found[kind] = rates
        return found

    def kernels(self) -> dict[str, float]:
        """GB/s of one token's experts by weight format."""
        found = _object(self._of_machine(_RATES).get("kernels"))
        return {name: curve[0][1] for name, value in found.items() if (curve := _curve(value)) is not None}

    def note_rates(self, footprint: Footprint, folder: Path, rates: Rates) -> None:
        self._edit(_RATES, "rates", {f"{kind_of(footprint)}|{drive_of(folder).device}": rates.to_json()})

    def note_kernels(self, curves: Mapping[str, Curve]) -> None:
        self._edit(_RATES, "kernels", {name: [list(point) for point in curve] for name, curve in curves.items()})

    def note_card(self, footprint: Footprint, card: str, rates: CardRates) -> None:
        self._edit(_RATES, "cards", {f"{kind_of(footprint)}|{card}": rates.to_json()})

    def note_card_kernels(self, card: str, curves: Mapping[str, Curve]) -> None:
        self._edit(_RATES, "card_kernels", {card: {name: [list(point) for point in curve] for name, curve in curves.items()}})

    def card(self, footprint: Footprint, card: str) -> tuple[CardRates | None, str]:
        """For such a model on the graphics card of that name, by the nearest one of its format, and why there are none.

        Where no model of its format was measured, the nearest one stands in with the rates of its format's kernels.
        """
        kind, found = kind_of(footprint), dict[Kind, CardRates]()
        for name, value in _object(self._of_machine(_RATES).get("cards")).items():
            label, _, on = name.partition("|")
            other, rates = _kind(label), CardRates.from_json(value)
            if on == card and other is not None and rates is not None:
                found[other] = rates
        if not found:
            return None, "the graphics card has not been measured yet"
        of_format = [other for other in found if other.weight_format == kind.weight_format]
        nearest = found[min(of_format or found, key=kind.distance)]
        if of_format:
            return nearest, ""
        curve = _curve(_object(_object(self._of_machine(_RATES).get("card_kernels")).get(card)).get(kind.weight_format))
        if curve is not None:
            return replace(nearest, expert_gbps=curve[0][1], experts_by_rows=curve), ""
        return None, f"the graphics card has not been measured with {kind.weight_format or 'this format'} yet"

    def should_measure_card(self, footprint: Footprint, card: str) -> bool:
        """There are none of its kind's own, or answers with it disagree with them."""
        found = CardRates.from_json(_object(self._of_machine(_RATES).get("cards")).get(f"{kind_of(footprint)}|{card}"))
        return found is None or self._is_refuted(kind_of(footprint), found.seconds, card)

    def should_measure(self, footprint: Footprint, folder: Path) -> bool:
        """There are no rates of its kind's own, or answers disagree with them."""
        kind = kind_of(footprint)
        found = self._on_drive(self._of_machine(_RATES), drive_of(folder).device).get(kind)
        return found is None or self._is_refuted(kind, found.seconds)

    def _is_refuted(self, kind: Kind, since: float, card: str = "") -> bool:
        """By the last answers of that kind, with that card where one is named; not where those before the last measurement
        said the same, as it has changed nothing then."""
        every = (answer for answers in self._answers().values() for answer in answers)
        own = [answer for answer in every if answer.kind == str(kind) and card in ("", answer.card)]
        own.sort(key=lambda answer: answer.seconds)
        before, ratios = (
            [answer.ratio for answer in own if (answer.seconds > since) is is_later][-_IN_A_ROW:] for is_later in (False, True)
        )
        if len(ratios) < _IN_A_ROW or not (min(ratios) > _SLOWER or max(ratios) < _FASTER):
            return False
        return len(before) < _IN_A_ROW or not 1 / _SAME < median(ratios) / median(before) < _SAME

    def answers(self, model: str) -> list[Answer]:
        """The oldest first."""
        return self._answers().get(model, [])

    def note_answer(self, model: str, answer: Answer) -> None:
        if answer.tokens < _LEAST_TOKENS:
            return
        kept = [*self.answers(model), answer][-_KEPT:]
        self._edit(_ANSWERS, "answers", {model: [{name: getattr(one, name) for name in _FIELDS} for one in kept]})

    def heat_file(self, model: str) -> Path:
        """What it used last."""
        return self.data / "heat" / f"{model}.json"

    def knowledge(self, footprint: Footprint, folder: Path, model: str = "") -> Knowledge:
        """All that a forecast needs. `model` is a model's key, by which its answers and its heat are kept."""
        rates, unknown = self.rates(footprint, folder)
        card, unknown_card = self.card(footprint, self._card)
        answers = self.answers(model) if model else []
        since = rates.seconds if rates is not None else 0.0
        locality = _locality(answers, footprint, self.heat_file(model) if model else None)
        in_ram, on_card = _seen(answers, "", since), NOT_SEEN
        if card is not None:
            on_card = _seen(answers, self._card, max(since, card.seconds))
        return Knowledge(rates, unknown, card, unknown_card, locality, in_ram, on_card)

    def _answers(self) -> dict[str, list[Answer]]:
        found = _object(self._of_machine(_ANSWERS).get("answers"))
        return {
            model: [one for value in values if (one := _answer(value))]
            for model, values in found.items()
            if isinstance(values, list)
        }

    def _of_machine(self, file: str) -> dict[str, Any]:
        try:
            value = StateFile(self.data / file).read()
        except EngineError as error:
            _log.warning("%s", error)
            return {}
        return _object(_object(value.get("machines")).get(self._machine)) if value.get("version") == _VERSION else {}

    def _edit(self, file: str, part: str, changes: dict[str, Any]) -> None:
        try:
            with StateFile(self.data / file).edit() as value:
                if value.get("version") != _VERSION or not isinstance(value.get("machines"), dict):
                    value.clear()
                    value.update({"version": _VERSION, "machines": {}})
                machine = _object(value["machines"].get(self._machine))
                value["machines"][self._machine] = machine | {part: _object(machine.get(part)) | changes}
        except EngineError as error:
            _log.warning("not noted: %s", error)


def _seen(answers: list[Answer], card: str, since: float) -> Seen:
    """Of a model's answers with that card, or without any; rates are of the time `since`."""
    own = [answer for answer in answers if answer.card == card]
    speeds = tuple((answer.share, answer.vram_share, answer.tokens_per_second) for answer in own[-_JUDGED:])
    return Seen(correction_of([answer for answer in own if answer.seconds > since]), speeds)


def correction_of(answers: list[Answer]) -> Correction:
    """From answers that the present rates foretold."""
    ratios = [answer.ratio for answer in answers[-_JUDGED:]]
    if not ratios:
        return NO_CORRECTION
    factor = median(ratios)
    return Correction(factor, max(max(ratio / factor, factor / ratio) for ratio in ratios))


def _locality(answers: list[Answer], footprint: Footprint, heat_file: Path | None) -> Locality:
    measured = of_answers([(answer.share, answer.hit_rate) for answer in answers])
    if measured is not None:
        return measured
    heat = load_heat(heat_file, range(footprint.num_layers), footprint.num_experts) if heat_file is not None else {}
    return of_heat(heat, footprint.num_experts) or PUBLISHED


_FIELDS = tuple(Answer.__dataclass_fields__)


def _answer(value: Any) -> Answer | None:
    try:
        numbers = [float(value[name]) for name in ("share", "hit_rate", "ratio", "seconds", "tokens_per_second")]
        share, hit_rate, ratio, seconds, speed = numbers
        kind, card = str(value["kind"]), str(value.get("card", ""))
        in_vram = float(value.get("vram_share", -1.0 if card else 0.0))  # -1 is like no share: it was not always noted
        answer = Answer(share, hit_rate, ratio, int(value["tokens"]), kind, seconds, speed, card, in_vram)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        return None
    is_possible = 0 <= share <= 1 and -1 <= in_vram <= 1 and 0 <= hit_rate <= 1 and 0 < ratio < 1e6 and 0 < speed < 1e6
    return answer if is_possible else None


def _kind(value: str) -> Kind | None:
    rest, _, hidden = value.rpartition("/")
    label, _, expert = rest.rpartition("/")
    is_power = all(power.isdecimal() and len(power) <= 3 for power in (expert, hidden))
    return Kind(label, int(expert), int(hidden)) if is_power else None


def _curve(value: Any) -> Curve | None:
    try:
        curve = tuple((float(rows), float(gbps)) for rows, gbps in value)
    except (TypeError, ValueError, OverflowError):
        return None
    is_rising = all(early[0] < late[0] for early, late in pairwise(curve))
    return curve if curve and is_rising and all(rows >= 1 and is_speed(gbps) for rows, gbps in curve) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
