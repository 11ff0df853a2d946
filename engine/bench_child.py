"""Measures this computer in a process of its own: `python -m engine.bench_child FOLDER`, run by `engine.bench_call`.

Says how far it is in lines of JSON, and notes what it found in the notebook. Ends early when its stdin is closed.
"""

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from engine.checkpoint.index import suggested_expert_ram
from engine.errors import EngineError
from engine.hardware.drive import drive_of
from engine.hardware.probe import probe
from engine.knowledge import Notebook
from engine.models.registry import SUPPORTED
from engine.protocol import ModelState
from engine.store.library import data_folder, list_models, models_folder

_SECONDS = 13.0  # with the start of the tensor library and a scratch file; a slow drive writes that for longer
_START = "Starting the kernels"
_log = logging.getLogger(__name__)


class _Teller:
    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)  # whatever a library prints is no message

    def tell(self, **fields: object) -> None:
        try:
            print(json.dumps(fields), file=self._out, flush=True)
        except OSError:
            os._exit(1)  # nobody listens any more

    def tell_stage(self, stage: str, done: int, total: int) -> None:
        self.tell(stage=stage, done=done, total=total)


def main(folder: Path) -> int:
    teller, stopped = _Teller(), threading.Event()
    threading.Thread(target=_watch, args=(stopped,), daemon=True).start()
    teller.tell(stage=_START, done=0, total=0)
    try:
        _measure(folder, teller, stopped)
    except EngineError as error:
        teller.tell(error=[error.code, error.text, error.hint])
        return 0
    teller.tell(stage="", done=0, total=0, is_over=True)
    return 0


def _watch(stopped: threading.Event) -> None:
    sys.stdin.buffer.read()
    stopped.set()


def _measure(folder: Path, teller: _Teller, stopped: threading.Event) -> None:
    deadline = time.monotonic() + _SECONDS
    from engine.bench_pieces import Stopped
    from engine.measure import measure_all
    from engine.scratch import scratch_model
    from engine.source import inspect

    notebook = Notebook(data_folder(), probe())

    def measured(model: Path) -> bool:
        """False where its experts are too large to be measured here."""
        try:
            measure_all(inspect(model), folder, notebook, deadline, teller.tell_stage, stopped.is_set)
        except EngineError as error:
            if error.code != "bench.memory":
                raise
            _log.info("%s", error)
            return False
        return True

    try:
        if not any(map(measured, _models_on_drive(folder))):
            with scratch_model(folder, stopped.is_set) as model:
                if not measured(model):
                    text = "Too little memory is free to measure this computer."
                    raise EngineError("bench.memory", text, "Close other programs.")
    except Stopped:
        return


def _models_on_drive(folder: Path) -> Iterator[Path]:
    """Those that can be loaded, the largest first; without a demo, whose small matrices say little of a large model's."""
    device = drive_of(folder).device
    entries = [entry for entry in list_models(models_folder(), SUPPORTED) if not entry.problem]
    for entry in sorted(entries, key=lambda entry: entry.bytes, reverse=True):
        place = Path(entry.path)
        is_demo = suggested_expert_ram(place) is not None
        if entry.state is not ModelState.AWAY and not is_demo and drive_of(place).device == device:
            yield place


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    code = main(Path(sys.argv[1]))
    os._exit(code)
