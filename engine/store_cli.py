"""The command line's verbs for models on this computer: pull, models, rm. See `engine.cli`."""

import argparse
import dataclasses
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from engine.errors import EngineError
from engine.models.registry import SUPPORTED
from engine.protocol import DownloadAction, DownloadJob, DownloadProgress, DownloadState, ModelEntry
from engine.store.library import add_folder, data_folder, find_model, list_models, models_folder
from engine.store.records import Record, Records
from engine.units import format_bytes, parse_bytes

Run = Callable[[argparse.Namespace], int]
_LEAST_RATE = 1000  # bytes per second
_RETRIES = 5  # where nobody looks on: half a minute


class Bar(Protocol):
    """One line of progress on a terminal, see `engine.cli`."""

    def show_stage(self, stage: str, done: int, total: int) -> None: ...
    def end(self) -> None: ...


MakeBar = Callable[[str, bool], Bar]


def add_verbs(verbs: Any, add_verb: Callable[[Any, str, str, Run], argparse.ArgumentParser], make_bar: MakeBar) -> None:
    """`make_bar` takes a title and whether to be silent."""
    pull = add_verb(verbs, "pull", "download a model from the Hugging Face Hub, or go on with a download", _pull)
    pull.add_argument("repo", nargs="?", help="maker/model; without it the queue of downloads is worked through")
    pull.add_argument("--revision", help="branch, tag or commit (main)")
    pull.add_argument("--folder", default="", metavar="DIR", help="put it below this folder instead of the Hugging Face cache")
    pull.add_argument("--limit", metavar="AMOUNT", help="at most so much per second, such as 5MB")
    pull.add_argument("--verify", action="store_true", help="first compare what is there with its checksums")
    pull.add_argument("--cancel", choices=("keep", "delete"), help="give it up; what has arrived stays, or goes")
    pull.set_defaults(make_bar=make_bar)

    models = add_verb(verbs, "models", "list the models on this computer", _models)
    models.add_argument("--add", metavar="DIR", help="also list this model, or look for models in this folder")
    models.add_argument("--forget", metavar="DIR", help="take a folder off the list; its files stay")
    models.add_argument("--verify", metavar="NAME", help="compare a model with its checksums")
    models.add_argument("--move", nargs=2, metavar=("NAME", "DIR"), help="move a model below another folder")
    models.set_defaults(make_bar=make_bar)

    remove = add_verb(verbs, "rm", "delete a model that Stoker brought; other files stay", _remove)
    remove.add_argument("model", help="its name or folder")
    remove.add_argument("--yes", action="store_true", help="do not ask")

    add_verb(verbs, "download", "", _serve)  # for the window alone: not listed


def _serve(_: argparse.Namespace) -> int:
    from engine.fetch import main as serve

    return serve()


def _pull(options: argparse.Namespace) -> int:
    from engine.store.hub import check_repo_name, default_access
    from engine.store.jobs import Jobs
    from engine.store.patience import Patience, Throttle
    from engine.store.run import Bench, run_job, run_queue
    from engine.store.web import Line, tls_context

    if options.cancel:
        return _cancel(options)
    limit = 0 if options.limit is None else _rate(options.limit)
    logging.getLogger("filelock").setLevel(logging.WARNING)
    jobs, bar = Jobs(data_folder()), options.make_bar("Downloading", options.json)
    is_watched = sys.stderr.isatty()
    patience = Patience() if is_watched else Patience(retries=_RETRIES)
    line = Line(default_access(), tls_context(), patience, Throttle(limit))
    stopped, trouble = threading.Event(), _Trouble()
    show = (lambda progress: _show(bar, progress)) if is_watched else trouble.show
    bench = Bench(data_folder(), line, stopped.is_set, show)
    previous = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    try:
        if options.repo is None:
            run_queue(bench)
            return _tell_queue(jobs.all(), options.json, stopped.is_set())
        _check_same(jobs.find(check_repo_name(options.repo)), options.revision, options.folder)
        job = jobs.add(options.repo, options.revision or "main", options.folder)
        if options.verify:
            _verify_all(job.repo, bar)
        ended = run_job(bench, job.repo)
    finally:
        signal.signal(signal.SIGINT, previous)
        bar.end()
    if stopped.is_set() and ended is not None and ended.state is not DownloadState.DONE:
        jobs.edit(job.repo, DownloadAction.PAUSE)
    return _tell_job(jobs.find(job.repo), options.json)


def _check_same(job: DownloadJob | None, revision: str | None, folder: str) -> None:
    """A download goes on with the place and the revision that it began with. Raises `EngineError` for others."""
    if job is None or job.state is DownloadState.DONE or not job.done_bytes:
        return
    is_other = bool(folder) and str(Path(folder).expanduser().absolute()) != job.folder
    if is_other or (revision is not None and revision != job.revision):
        text = f"{job.repo} is under way: {job.revision} into {job.folder or 'the Hugging Face cache'}."
        hint = f"Go on with: stoker pull {job.repo}, or give it up first: stoker pull {job.repo} --cancel delete"
        raise EngineError("download.under_way", text, hint)


def _cancel(options: argparse.Namespace) -> int:
    from engine.store.hub import check_repo_name
    from engine.store.jobs import Jobs
    from engine.store.remove import cancel

    if options.repo is None:
        raise EngineError("cli.cancel", "No download is named.", "Name it: stoker pull maker/model --cancel keep")
    jobs, records, repo = Jobs(data_folder()), Records(data_folder()), check_repo_name(options.repo)
    cancel(jobs, records, repo, delete=options.cancel == "delete")
    if options.json:
        print_json({"downloads": [dataclasses.asdict(job) for job in jobs.all()]})
    else:
        rest = "What had arrived is deleted." if options.cancel == "delete" else "What has arrived stays."
        print(f"{repo} is no longer among the downloads. {rest}")
    return 0


def _rate(text: str) -> int:
    """Bytes per second. Raises `EngineError` for one at which nothing would come."""
    limit = parse_bytes(text)
    if limit < _LEAST_RATE:
        hint = f"Give {format_bytes(_LEAST_RATE)} or more, or leave --limit out."
        raise EngineError("cli.limit", f"At --limit {text} nothing would come.", hint)
    return limit


def _verify_all(repo: str, bar: Bar) -> None:
    from engine.store.verify import verify

    records = Records(data_folder())
    for record in records.of_repo(repo):
        verify(records, record, lambda done, total: bar.show_stage("Comparing checksums", done, total), lambda: False)


class _Trouble:
    """What a download waits for, a line each, where no bar shows it."""

    def __init__(self) -> None:
        self._shown = ""

    def show(self, progress: DownloadProgress) -> None:
        job = progress.job
        if job.state is DownloadState.RUNNING and job.text not in ("", self._shown):
            print(f"{job.repo}: {job.text}", file=sys.stderr, flush=True)
            self._shown = job.text


def _show(bar: Bar, progress: DownloadProgress) -> None:
    job, rate, left = progress.job, progress.bytes_per_second, progress.seconds_left
    parts = [job.repo, *([f"{format_bytes(rate)}/s"] if rate else []), *([_duration(left)] if left else [])]
    bar.show_stage(" · ".join([*parts, *([job.text] if job.text else [])]), job.done_bytes, job.total_bytes)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{seconds:.0f} s left" if seconds < 90 else f"{minutes} min left" if minutes < 90 else f"{minutes / 60:.1f} h left"


def _tell_job(job: DownloadJob | None, as_json: bool) -> int:
    """Raises `EngineError` for one that failed."""
    if job is None:
        raise EngineError("download.cancelled", "The download was cancelled from elsewhere.")
    if job.state is DownloadState.FAILED:
        raise EngineError(job.code, job.text, job.hint)
    record = next((item for item in Records(data_folder()).of_repo(job.repo) if item.commit == job.commit), None)
    path = record.folder if record is not None else ""
    is_done = job.state is DownloadState.DONE
    entries = list_models(models_folder(), SUPPORTED) if is_done else ()
    problem = next((entry.problem for entry in entries if entry.path == path), "")
    if as_json:
        print_json(dataclasses.asdict(job) | {"path": path, "problem": problem})
    elif is_done:
        print(f"{job.repo} is complete and compared, {format_bytes(job.total_bytes)} in {path}")
        print(f"It cannot be loaded: {problem}" if problem else f"Try: stoker chat --model {job.repo}")
    else:
        amounts = f"{format_bytes(job.done_bytes)} of {format_bytes(job.total_bytes)}" if job.total_bytes else "its start"
        print(f"{job.repo} is paused at {amounts}. Go on with: stoker pull {job.repo}", file=sys.stderr)
    return 0 if is_done else 130


def _tell_queue(queue: tuple[DownloadJob, ...], as_json: bool, is_stopped: bool) -> int:
    if as_json:
        print_json({"downloads": [dataclasses.asdict(job) for job in queue]})
    for job in () if as_json else queue:
        print(f"{job.repo:48} {job.state:8} {format_bytes(job.done_bytes):>8} of {format_bytes(job.total_bytes)}  {job.text}")
    if not queue and not as_json:
        print("There are no downloads. Start one: stoker pull maker/model")
    if is_stopped:
        return 130
    return 1 if any(job.state is DownloadState.FAILED for job in queue) else 0


def _models(options: argparse.Namespace) -> int:
    records, folder = Records(data_folder()), models_folder()
    bar = options.make_bar("Comparing", options.json)
    if "" in (options.add, options.forget, options.verify):
        raise EngineError("cli.empty", "An empty name is given.", "Name a folder or a model.")
    asked = [name for name in ("add", "forget", "verify", "move") if getattr(options, name)]
    if len(asked) > 1:
        text = f"--{asked[0]} and --{asked[1]} are given together."
        raise EngineError("cli.actions", text, "Give one of them at a time.")
    if options.add:
        _add(Path(options.add).expanduser().absolute(), records)
    if options.forget:
        records.forget_folder(Path(options.forget).expanduser().absolute())
    if options.verify:
        _verify(records, options.verify, bar)
    if options.move:
        _move(records, options.move[0], options.move[1], bar)
    bar.end()
    entries = list_models(folder, SUPPORTED)
    if options.json:
        print_json({"folder": str(folder), "models": [dataclasses.asdict(entry) for entry in entries]})
        return 0
    for entry in entries:
        print(_row(entry))
    if not entries:
        print(f"No models in {folder}. Make the demo model: stoker demo")
    return 0


def _row(entry: ModelEntry) -> str:
    said = entry.problem or " · ".join(filter(None, (entry.architecture, entry.licence, f"checksums {entry.state}")))
    return f"{entry.name:32} {entry.weight_format:5} {format_bytes(entry.bytes):>8}  {said}"


def _verify(records: Records, name: str, bar: Bar) -> None:
    from engine.store.jobs import Jobs
    from engine.store.verify import verify

    record = _record_of(records, name)
    with Jobs(data_folder()).held(record.repo):
        damaged = verify(records, record, lambda done, total: bar.show_stage("Comparing", done, total), lambda: False)
    if damaged:
        count, hint = len(damaged), f"Bring what is damaged again: stoker pull {record.repo}"
        raise EngineError("store.damaged", f"{count} of {len(record.files)} files of {record.repo} are damaged.", hint)


def _move(records: Records, name: str, folder: str, bar: Bar) -> None:
    from engine.store.jobs import Jobs
    from engine.store.moves import move

    record = _record_of(records, name)
    with Jobs(data_folder()).held(record.repo):
        move(records, record, Path(folder), lambda done, total: bar.show_stage("Moving", done, total), lambda: False)


def _add(folder: Path, records: Records) -> None:
    add_folder(folder, records)
    if not any(Path(entry.path).is_relative_to(folder) for entry in list_models(models_folder(), SUPPORTED)):
        print(f"There is no model in {folder} yet; it is watched from now on.", file=sys.stderr)


def _record_of(records: Records, name: str) -> Record:
    """Of a model that Stoker brought. Raises `EngineError`, which tells one that is here from a name that nobody has."""
    from engine.store.remove import record_for

    try:
        return record_for(records, name)
    except EngineError:
        find_model(name, models_folder())
        raise


def _remove(options: argparse.Namespace) -> int:
    from engine.store.jobs import Jobs
    from engine.store.remove import files_of, remove

    records = Records(data_folder())
    record = _record_of(records, options.model)
    found, nbytes = files_of(records, record)
    amount = format_bytes(nbytes)
    if not options.yes:
        if options.json or not sys.stdin.isatty():
            raise EngineError("cli.confirm", f"This would delete {amount} of {record.repo}.", "Add --yes to do it.")
        if input(f"Delete {len(found)} files of {record.repo}, {amount}? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    with Jobs(data_folder()).held(record.repo):
        found, nbytes = remove(records, record)
    if options.json:
        print_json({"repo": record.repo, "files": [str(path) for path in found], "bytes": nbytes})
    else:
        print(f"{record.repo}: {len(found)} files deleted, {format_bytes(nbytes)} free again.")
    return 0


def print_json(value: object) -> None:
    print(json.dumps(value, allow_nan=False))
