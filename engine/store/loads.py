"""What a load leaves behind for later: when the model was used, and the rates that were measured for its prediction."""

import logging
import os
from pathlib import Path

from engine.errors import EngineError
from engine.hardware.machine import Rates
from engine.meter import Link
from engine.protocol import Plan
from engine.store.records import Records
from engine.store.state_file import StateFile

_log = logging.getLogger(__name__)
_RATES = "rates.json"


def note_loaded(data: Path, folder: Path, plan: Plan) -> None:
    """Never in the way of a load: a full drive costs the note, not the answer."""
    try:
        Records(data).note_used(Path(os.path.realpath(folder)))
        if plan.predicted is not None:
            ram = plan.predicted.links[Link.RAM]
            with StateFile(data / _RATES).edit() as value:
                value["compute_gbps"] = ram.gbps  # with the fixed cost of this model's layers in it
                value["ceilings"] = {link.value: gbps for link, gbps in plan.ceilings_gbps.items()}
                value["measured_with"] = plan.model_name
    except EngineError as error:
        _log.warning("not noted: %s", error)


def known_rates(data: Path) -> Rates | None:
    """As measured at the last load on this computer; None before the first one."""
    value = StateFile(data / _RATES).read()
    try:
        ceilings = {Link(link): float(gbps) for link, gbps in value["ceilings"].items()}
        rates = Rates(float(value["compute_gbps"]), 0.0, ceilings)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    is_usable = rates.compute_gbps > 0 and all(rates.ceilings.get(link, 0) > 0 for link in (Link.RAM, Link.DISK))
    return rates if is_usable else None
