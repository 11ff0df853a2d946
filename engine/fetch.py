"""Downloads and the library behind stdin and stdout, for the window: `python -m engine download` (see `engine.protocol`).

The main thread only reads; each request has a thread of its own, since some take hours. End of input ends the process, and what
has arrived stays for the next one.
"""

import logging
import os
import signal
import ssl
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engine import __version__
from engine.bench_call import run_bench
from engine.errors import EngineError
from engine.hardware.drive import drive_of
from engine.hardware.probe import probe_all
from engine.host import Wire
from engine.judge import Ground, judge_catalogue, judge_entry, look_around, plan_facts, read_named
from engine.models.registry import SUPPORTED
from engine.protocol import (
    PROTOCOL_VERSION,
    AddDownload,
    AddFolder,
    Cancel,
    Card,
    DownloadAction,
    Downloads,
    EditDownload,
    Failed,
    ForgetFolder,
    Hello,
    HubModels,
    LimitDownloads,
    ListCatalogue,
    ListDownloads,
    ListModels,
    MachineFacts,
    MachineRates,
    MeasureMachine,
    Message,
    Models,
    MoveModel,
    PlanFor,
    ProbeMachine,
    Progress,
    ProtocolError,
    ReadCard,
    ReadRates,
    Removed,
    RemoveModel,
    RepoPlan,
    RunDownloads,
    SearchHub,
    VerifyModel,
    decode,
    request_id_of,
)  # fmt: skip
from engine.shelf import Shelf, stamp_of
from engine.store import moves, remove
from engine.store.catalogue import read_catalogue
from engine.store.library import add_folder, data_folder, list_models, models_folder, watched_folders
from engine.store.records import Record, Records
from engine.store.verify import verify
from engine.store.web import StoppedError

if TYPE_CHECKING:
    from engine.store.patience import Patience
    from engine.store.web import Line

_log = logging.getLogger(__name__)
_END_SECONDS = 5.0


@dataclass
class Desk:
    """Answers requests, each exactly once, from any number of threads."""

    wire: Wire
    data: Path
    models: Path
    ended: threading.Event = field(default_factory=threading.Event)
    cancelled: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        from engine.store.jobs import Jobs  # here, since it brings the Hub's client: hello does not wait for it
        from engine.store.patience import Throttle

        self._jobs, self._records, self._throttle = Jobs(self.data), Records(self.data), Throttle()
        self._tls: ssl.SSLContext | None = None  # takes a while to make
        self._shelf = Shelf()
        self._bench = threading.Lock()  # two at once would measure each other

    def answer(self, request: Message) -> None:
        request_id: int = getattr(request, "request_id", 0)
        try:
            self.wire.send(self._answer(request_id, request))
        except EngineError as error:
            self.wire.send(Failed(request_id, error.code, error.text, error.hint))
        except StoppedError:
            self.wire.send(Failed(request_id, "store.stopped", "It was stopped.", "Nothing was changed."))
        except BrokenPipeError:
            self.ended.set()
        except BaseException as error:
            _log.exception("request %s failed", request_id)
            text = f"The download met an internal error ({type(error).__name__})."
            self.wire.send(Failed(request_id, "engine.bug", text, "Its log has the details; please report it."))

    def _answer(self, request_id: int, request: Message) -> Message:
        match request:
            case ListDownloads():
                pass
            case AddDownload(_, repo, revision, folder):
                self._jobs.add(repo, revision, folder)
            case EditDownload(_, repo, action, position):
                if action is DownloadAction.DELETE:
                    remove.cancel(self._jobs, self._records, repo, delete=True)
                else:
                    self._jobs.edit(repo, action, position)
            case LimitDownloads(_, bytes_per_second):
                self._throttle.bytes_per_second = bytes_per_second
            case RunDownloads():
                self._run(request)
            case ListModels() | AddFolder() | ForgetFolder() | MoveModel() | VerifyModel() | RemoveModel():
                return self._library(request_id, request)
            case ListCatalogue(_, folder, engine_pid):
                ground = look_around(self.data, folder, engine_pid)
                return HubModels(request_id, tuple(judge_catalogue(model, ground) for model in read_catalogue()), ground.words)
            case SearchHub() | PlanFor() | ReadCard():
                return self._browse(request)
            case ProbeMachine(_, folders):
                where = map(Path, folders) if folders else watched_folders(self.models, self._records)
                return MachineFacts(request_id, probe_all(where))
            case ReadRates(_, folder):
                return _rates(request_id, look_around(self.data, folder))
            case MeasureMachine(_, folder):
                return self._measure(request_id, folder)
            case _:
                raise EngineError("protocol.unexpected", f"{type(request).__name__} is not a request of this child.")
        return Downloads(request_id, self._jobs.all())

    def _run(self, request: RunDownloads) -> None:
        from engine.store.patience import Patience
        from engine.store.run import Bench, run_queue

        self._throttle.bytes_per_second = request.bytes_per_second
        is_stopped = partial(self._is_stopped, request.request_id)
        line = self._line(request.token, Patience())
        run_queue(Bench(self.data, line, is_stopped, self.wire.send, request.request_id))

    def _browse(self, request: SearchHub | PlanFor | ReadCard) -> Message:
        """A person waits for the answer: trouble is told soon."""
        from engine.store.patience import Patience
        from engine.store.search import read_card, search

        line = self._line(request.token, Patience(stall_seconds=15, retries=1))
        is_stopped = partial(self._is_stopped, request.request_id)
        match request:
            case SearchHub(request_id, text, sort, only_supported):
                architectures = SUPPORTED if only_supported else frozenset()
                return HubModels(request_id, search(line, text, sort, architectures, is_stopped))
            case PlanFor(request_id, repo, folder, token, wishes, engine_pid):
                facts = self._shelf.find((repo, token), stamp_of(repo), lambda: read_named(line, repo, is_stopped))
                model, limits = plan_facts(facts, look_around(self.data, folder, engine_pid), wishes)
                return RepoPlan(request_id, model, facts.num_files, limits, facts.download_bytes, facts.caution)
            case ReadCard(request_id, repo):
                return Card(request_id, repo, read_card(line, repo, is_stopped))

    def _measure(self, request_id: int, folder: str) -> Message:
        with self._bench:
            ground, is_stopped = look_around(self.data, folder), partial(self._is_stopped, request_id)
            run_bench(ground.folder, lambda *step: self.wire.send(Progress(request_id, *step)), is_stopped)
        return _rates(request_id, ground)

    def _line(self, token: str, patience: "Patience") -> "Line":
        from engine.store.hub import default_access
        from engine.store.web import Line, tls_context

        self._tls = self._tls or tls_context()
        return Line(default_access(token or None), self._tls, patience, self._throttle)

    def _library(self, request_id: int, request: Message) -> Message:
        records, is_stopped = self._records, partial(self._is_stopped, request_id)
        match request:
            case AddFolder(_, path):
                add_folder(Path(path), records)
            case ForgetFolder(_, path):
                records.forget_folder(Path(path))
            case RemoveModel(_, path, only_list):
                record = remove.record_for(records, path)
                with self._jobs.held(record.repo):
                    files, nbytes = remove.files_of(records, record) if only_list else remove.remove(records, record)
                return Removed(request_id, tuple(map(str, files)), nbytes)
            case MoveModel(_, path, folder):
                record = remove.record_for(records, path)
                with self._jobs.held(record.repo):
                    moves.move(records, record, Path(folder), partial(self._show, request_id, record), is_stopped)
            case VerifyModel(_, path):
                record = remove.record_for(records, path)
                with self._jobs.held(record.repo):
                    verify(records, record, partial(self._show, request_id, record), is_stopped)
        watched = tuple(map(str, watched_folders(self.models, records)))
        ground = look_around(self.data, "")
        models = tuple(judge_entry(entry, ground) for entry in list_models(self.models, SUPPORTED))
        return Models(request_id, models, str(self.models), watched)

    def _show(self, request_id: int, record: Record, done: int, total: int) -> None:
        self.wire.send(Progress(request_id, record.repo, done, total))

    def _is_stopped(self, request_id: int) -> bool:
        return self.ended.is_set() or request_id in self.cancelled


def _rates(request_id: int, ground: Ground) -> MachineRates:
    notebook = ground.notebook
    rates = notebook.latest(ground.folder) if notebook is not None else None
    if notebook is None or rates is None:
        return MachineRates(request_id, unknown="this computer has not been measured yet")
    drive = drive_of(ground.folder).device
    return MachineRates(request_id, rates.ceilings, notebook.kernels(), drive, rates.seconds)


def main() -> int:
    """Serve until stdin ends. Whatever prints to stdout by mistake lands in the log, not in the stream."""
    wire_out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every address
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C in a terminal is for the window, which then closes our stdin
    wire = Wire(wire_out)
    wire.send(Hello(PROTOCOL_VERSION, __version__, os.getpid()))
    desk = Desk(wire, data_folder(), models_folder())
    threads: list[threading.Thread] = []
    for line in sys.stdin.buffer:
        try:
            message = decode(line)
        except ProtocolError:
            _log.warning("a line that is no message of protocol %d", PROTOCOL_VERSION)  # it may hold a token
            if (request_id := request_id_of(line)) is not None:
                text = "The engine did not understand a request."
                wire.send(Failed(request_id, "protocol.unreadable", text, "Update Stoker."))
            continue
        if isinstance(message, Cancel):
            desk.cancelled.add(message.request_id)
            continue
        threads = [thread for thread in threads if thread.is_alive()]
        threads.append(threading.Thread(target=desk.answer, args=(message,), daemon=True))
        threads[-1].start()
    desk.ended.set()
    for thread in threads:
        thread.join(_END_SECONDS)
    os._exit(0)  # nothing may keep this process, not even a read that hangs on a dead drive
