"""What a load leaves behind for later: when the model was used."""

import logging
import os
from pathlib import Path

from engine.errors import EngineError
from engine.store.records import Records

_log = logging.getLogger(__name__)


def note_loaded(data: Path, folder: Path) -> None:
    """Never in the way of a load: a full drive costs the note, not the answer."""
    try:
        Records(data).note_used(Path(os.path.realpath(folder)))
    except EngineError as error:
        _log.warning("not noted: %s", error)
