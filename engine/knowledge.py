"""What is known of this computer and of a model's answers on it: two small files in the data folder. Measures nothing.

`rates.json` keeps rates by machine, weight format and drive; `answers.json` what each answer's prediction was worth. Rates
are trusted until three answers in a row with that format were a quarter slower, or a fifth faster, than they foretell: the
next load measures again. Smaller errors correct a model's next prediction and widen its range.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from zlib import crc32

from engine.checkpoint.index import Checkpoint
from engine.errors import EngineError
from engine.experts.heat import load_heat
from engine.hardware.drive import drive_of
from engine.hardware.machine import Machine
from engine.plan.footprint import Footprint
from engine.plan.forecast import Knowledge
from engine.plan.locality import PUBLISHED, Locality, of_answers, of_heat
from engine.plan.predict import NO_CORRECTION, Correction
from engine.rates import Curve, Rates, is_speed
from engine.store.state_file import StateFile

_log = logging.getLogger(__name__)
_RATES, _ANSWERS = "rates.json", "answers.json"
_VERSION = 2
_KEPT = 32  # answers of a model
_JUDGED = 9  # of them, for a correction
_IN_A_ROW, _SLOWER, _FASTER = 3, 1.25, 0.8
_LEAST_TOKENS = 16  # an answer below says little


@dataclass(frozen=True, slots=True)
class Answer:
    """`ratio` is measured seconds of a decoded token over those predicted for the hit rate that it had."""

    share: float  # of the experts in memory
    hit_rate: float
    ratio: float
    tokens: int
    weight_format: str
    seconds: float  # since 1970


def model_key(checkpoint: Checkpoint) -> str:
    """Two models of one name in two folders have heat and answers of their own."""
    return f"{checkpoint.name[:80]}-{crc32(os.fsencode(checkpoint.folder.resolve())):08x}"


def fingerprint(machine: Machine) -> str:
    """The same for a computer until something is changed in it that rates depend on."""
    cpu = machine.cpu
    facts = (machine.system, cpu.name, cpu.physical_cores, cpu.logical_cores, cpu.quota, cpu.isa, machine.ram_total >> 28)
    return f"{crc32(repr(facts).encode()):08x}"


class Notebook:
    """Both files. Reading never raises: what cannot be read is not known. Writing never stands in the way of an answer."""

    def __init__(self, data: Path, machine: Machine) -> None:
        self.data, self._machine = data, fingerprint(machine)

    def rates(self, weight_format: str, folder: Path) -> tuple[Rates | None, str]:
        """For models of a format on the drive of a folder, and why there are none.

        A format that was not measured with a model of its own has the kernels' rates, measured by themselves, and the rest of
        another format's.
        """
        device = drive_of(folder).device
        own = self._of_machine(_RATES)
        by_format, kernels = _object(own.get("rates")), _object(own.get("kernels"))
        if not by_format:
            return None, "this computer has not been measured yet"
        on_drive = {name.partition("|")[0]: value for name, value in by_format.items() if name.partition("|")[2] == device}
        if (found := Rates.from_json(on_drive.get(weight_format))) is not None:
            return found, ""
        others = [rates for value in on_drive.values() if (rates := Rates.from_json(value)) is not None]
        if not others:
            return None, f"the drive {device} has not been measured yet"
        latest = max(others, key=lambda rates: rates.seconds)
        curve = _curve(kernels.get(weight_format))
        if curve is None:
            return None, f"the kernels for {weight_format or 'this format'} have not been measured yet"
        return replace(latest, expert_gbps=curve[0][1], experts_by_rows=curve), ""

    def latest(self, folder: Path) -> Rates | None:
        """Whatever was measured last with the drive of a folder."""
        device, own = drive_of(folder).device, _object(self._of_machine(_RATES).get("rates"))
        found = [rates for name, value in own.items() if name.partition("|")[2] == device and (rates := Rates.from_json(value))]
        return max(found, key=lambda rates: rates.seconds) if found else None

    def kernels(self) -> dict[str, float]:
        """GB/s of one token's experts by weight format."""
        found = _object(self._of_machine(_RATES).get("kernels"))
        return {name: curve[0][1] for name, value in found.items() if (curve := _curve(value)) is not None}

    def note_rates(self, weight_format: str, folder: Path, rates: Rates) -> None:
        self._edit(_RATES, "rates", {f"{weight_format}|{drive_of(folder).device}": rates.to_json()})

    def note_kernels(self, curves: Mapping[str, Curve]) -> None:
        self._edit(_RATES, "kernels", {name: [list(point) for point in curve] for name, curve in curves.items()})

    def should_measure(self, weight_format: str, folder: Path) -> bool:
        """There are no rates of the format's own, or answers disagree with them."""
        name = f"{weight_format}|{drive_of(folder).device}"
        found = Rates.from_json(_object(self._of_machine(_RATES).get("rates")).get(name))
        if found is None:
            return True
        later = [answer for answers in self._answers().values() for answer in answers if answer.seconds > found.seconds]
        own = sorted((answer for answer in later if answer.weight_format == weight_format), key=lambda answer: answer.seconds)
        ratios = [answer.ratio for answer in own[-_IN_A_ROW:]]
        return len(ratios) == _IN_A_ROW and (min(ratios) > _SLOWER or max(ratios) < _FASTER)

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
        rates, unknown = self.rates(footprint.weight_format, folder)
        answers = self.answers(model) if model else []
        since = rates.seconds if rates is not None else 0.0
        locality = _locality(answers, footprint, self.heat_file(model) if model else None)
        return Knowledge(rates, unknown, locality, correction_of([answer for answer in answers if answer.seconds > since]))

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
        numbers = [float(value[name]) for name in ("share", "hit_rate", "ratio", "seconds")]
        share, hit_rate, ratio, seconds = numbers
        answer = Answer(share, hit_rate, ratio, int(value["tokens"]), str(value["weight_format"]), seconds)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return answer if 0 <= share <= 1 and 0 <= hit_rate <= 1 and 0 < ratio < 1e6 else None


def _curve(value: Any) -> Curve | None:
    try:
        curve = tuple((float(rows), float(gbps)) for rows, gbps in value)
    except (TypeError, ValueError):
        return None
    is_rising = all(early[0] < late[0] for early, late in pairwise(curve))
    return curve if curve and is_rising and all(rows >= 1 and is_speed(gbps) for rows, gbps in curve) else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
