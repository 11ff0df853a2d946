"""One repository onto this computer: ask what it has, check the space, bring what is missing, compare, make it appear."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.errors import EngineError
from engine.protocol import ModelState
from engine.store.files import RemoteFile, Repository
from engine.store.hashing import file_matches
from engine.store.hub import find_repository
from engine.store.part import DiskFullError, PartFile, bytes_in_part, discard_part
from engine.store.records import KnownFile, Record, Records
from engine.store.target import PlainFolder, check_folder, existing_parent, free_bytes, target_for
from engine.store.transfer import ChangedError, Standing, Transfer
from engine.store.web import Line, StoppedError
from engine.units import MB, format_bytes

_log = logging.getLogger(__name__)
_SPARE_BYTES = 64 * MB  # left free on the drive, for everyone else
_FULL_POLL_SECONDS = 1.0
_LEAST_FULL_SECONDS = 3.0  # a quota does not show in the free bytes: do not try again at once
_TRIES = 2  # a file that arrives with a wrong checksum is brought once more


@dataclass(frozen=True, slots=True)
class Order:
    """`commit` pins what an earlier run began with; without a `folder` it goes where it is already, else into the cache."""

    repo: str
    revision: str = "main"
    folder: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Bytes of the whole repository, 0 until the Hub has told them; `trouble` says why nothing comes, if so."""

    commit: str
    total_bytes: int
    done_bytes: int = 0
    verified_bytes: int = 0
    file: str = ""
    trouble: str = ""


class Download:
    """Used once, by the one process that holds the lock of the repository."""

    def __init__(
        self, order: Order, line: Line, records: Records, is_stopped: Callable[[], bool], report: Callable[[Report], None]
    ) -> None:
        self._order, self._line, self._records = order, line, records
        self._is_stopped, self._report = is_stopped, report

    def run(self) -> Path:
        """The model's folder. Raises `StoppedError` or `EngineError`; what has arrived is kept."""
        try:
            return self._run()
        except OSError as error:
            text = f"{error.filename or 'The drive'} cannot be used: {error.strerror or error}."
            raise EngineError("download.drive", text, "Check the drive, then resume: what has arrived is kept.") from error

    def _run(self) -> Path:
        repository = self._ask()
        self._repository = repository
        folder = str(check_folder(Path(self._order.folder))) if self._order.folder else self._present_folder()
        self._target = target_for(folder, repository, self._order.revision)
        self._known_elsewhere = {file.path: file for record in self._records.of_repo(repository.repo) for file in record.files}
        self._record = self._open_record(repository)
        self._check_space()
        self._target.prepare()
        for file in repository.files:
            self._others = self._amounts_of_others(file)
            if not self._is_right(file):
                self._bring(file)
        return self._finish()

    def _ask(self) -> Repository:
        """The pinned commit, or the present one where that is gone."""
        line = replace(self._line, tell=lambda text: self._report(Report(self._order.commit, 0, trouble=text)))
        if self._order.commit:
            try:
                return find_repository(line, self._order.repo, self._order.commit, self._is_stopped)
            except EngineError as error:
                if error.code != "hub.no_revision":
                    raise
        return find_repository(line, self._order.repo, self._order.revision, self._is_stopped)

    def _present_folder(self) -> str:
        """The chosen folder in which the model is already; empty where it is in no other place than the cache."""
        roots = [Path(record.root) for record in self._records.of_repo(self._repository.repo)]
        return next((str(root.parent) for root in roots if not root.name.startswith("models--")), "")

    def _open_record(self, repository: Repository) -> Record:
        """Raises `EngineError` where a folder of that name is somebody else's, or holds another revision."""
        root = str(self._target.root)
        found = [record for record in self._records.of_repo(repository.repo) if record.root == root]
        same = next((record for record in found if record.commit == repository.commit), None)
        if isinstance(self._target, PlainFolder) and self._target.root.exists() and same is None:
            if found and found[0].state is ModelState.WHOLE:
                text = f"{root} holds another revision of {repository.repo} ({found[0].commit[:8]})."
                raise EngineError("download.other_revision", text, f"Remove it first: stoker rm {repository.repo}")
            if not found:
                text = f"{root} is there already and was not made by Stoker."
                raise EngineError("download.taken", text, "Choose another folder; nothing in it was touched.")
            self._records.drop(found[0])
            same = replace(found[0], commit=repository.commit)  # half way, and the revision has gone: go on with the new one
        state = same.state if same is not None and same.state is ModelState.WHOLE else ModelState.ARRIVING
        new = Record(repository.repo, repository.commit, root, "", repository.licence, state)
        record = replace(same, state=state) if same is not None else new
        self._save(record)
        return record

    # What is there

    def _missing_bytes(self) -> int:
        return sum(
            file.size - bytes_in_part(self._target.place(file), file.size, file.checksum)
            for file in self._repository.files
            if not self._is_present(file)
        )

    def _is_present(self, file: RemoteFile) -> bool:
        """By its size alone."""
        place = self._target.place(file)
        return place.is_file() and place.stat().st_size == file.size

    def _is_right(self, file: RemoteFile) -> bool:
        """Whether it is there with the right checksum, which is computed where nobody has before."""
        place = self._target.place(file)
        known = self._record.known(place) or self._known_elsewhere.get(str(place))
        if known is not None and known.checksum == file.checksum and known.is_unchanged:
            if self._record.known(place) is None:
                self._save(self._record.with_file(known))
            return True
        if not self._is_present(file):
            return False
        self._send(file, f"comparing {file.name} with its checksum")
        if not file_matches(place, file.size, file.checksum, self._is_stopped):
            if self._is_stopped():
                raise StoppedError
            self._note_damaged()
            return False
        self._note_right(file, is_ours=known is not None and known.is_ours)
        return True

    # Bringing

    def _bring(self, file: RemoteFile) -> None:
        place = self._target.place(file)
        for attempt in range(1, _TRIES + 1):
            if self._transfer(file, place):
                self._note_right(file, is_ours=True)
                return
            discard_part(place)
            if attempt == _TRIES:
                text = f"{file.name} of {self._order.repo} arrived {_TRIES} times with a wrong checksum."
                raise EngineError("download.corrupt", text, "Something on the way changes it: try another network.")

    def _transfer(self, file: RemoteFile, place: Path) -> bool:
        """False: all of it came, and its checksum is wrong."""
        url, changes = self._repository.url(self._line.access.endpoint, file), 0
        while True:
            try:
                part = PartFile(place, file.size, file.checksum)
            except DiskFullError:
                self._wait_for_space(file)
                continue
            try:
                transfer = Transfer(self._line, url, part, file.name, uses_etag=changes < 2)
                is_right = transfer.run(self._is_stopped, lambda standing: self._send(file, standing=standing))
                if is_right:
                    part.finish()
                    return True
                return False
            except ChangedError as change:
                changes += 1
                part.restart(change.etag)
            except DiskFullError:
                self._wait_for_space(file)
            finally:
                part.close()

    def _check_space(self) -> None:
        """One that has begun waits for space where it is, as it does when the drive fills under way; a new one is refused."""
        missing, free = self._missing_bytes(), free_bytes(self._target.root)
        if not missing or missing + _SPARE_BYTES <= free:
            return
        if missing < self._repository.nbytes:
            first = next(file for file in self._repository.files if not self._is_present(file))
            self._others = self._amounts_of_others(first)
            self._wait_for_space(first)
            return
        place = existing_parent(self._target.root)
        if self._record.state is ModelState.ARRIVING and not self._record.files:
            self._records.drop(self._record)  # nothing was written there, so the next try may go elsewhere
        kept = f"{format_bytes(_SPARE_BYTES)} must stay free beside it"
        text = f"{self._order.repo} needs {format_bytes(missing)}; {place} has {format_bytes(free)} free, and {kept}."
        hint = f"Free {format_bytes(missing + _SPARE_BYTES - free)} there, or choose another folder."
        raise EngineError("download.no_space", text, hint)

    def _wait_for_space(self, file: RemoteFile) -> None:
        """Until what is missing fits. Raises `StoppedError`."""
        until = time.monotonic() + _LEAST_FULL_SECONDS
        while True:
            needed = self._missing_bytes() + _SPARE_BYTES - free_bytes(self._target.root)
            if needed <= 0 and time.monotonic() >= until:
                return
            place = existing_parent(self._target.root)
            self._send(file, f"{place} is full: {format_bytes(max(needed, 1))} more must be free; it goes on by itself then")
            again_at = time.monotonic() + _FULL_POLL_SECONDS
            while time.monotonic() < again_at:
                if self._is_stopped():
                    raise StoppedError
                time.sleep(0.05)

    # What is known

    def _note_right(self, file: RemoteFile, *, is_ours: bool) -> None:
        place = self._target.place(file)
        known = KnownFile(str(place), file.size, file.checksum, place.stat().st_mtime_ns, is_ours)
        self._save(self._record.with_file(known))

    def _note_damaged(self) -> None:
        self._save(replace(self._record, state=ModelState.DAMAGED))

    def _finish(self) -> Path:
        before, files = self._record, self._repository.files
        known = {file: self._record.known(self._target.place(file)) for file in files}
        pointers = self._target.finish()
        moved = (replace(entry, path=str(self._target.place(file))) for file, entry in known.items() if entry is not None)
        has_checksums = all(file.checksum for file in files)
        self._record = replace(
            self._record,
            root=str(self._target.root),
            folder=str(self._target.folder),
            files=tuple(moved),
            state=ModelState.WHOLE if has_checksums else ModelState.UNVERIFIED,
            pointers=tuple(dict.fromkeys((*before.pointers, *pointers))),
            verified_at=time.time(),
        )
        self._records.put(self._record)
        if isinstance(self._target, PlainFolder):
            self._records.add_folder(self._target.parent, is_model=False)
        if before.root != self._record.root:
            self._records.drop(before)
        total = self._repository.nbytes
        self._report(Report(self._repository.commit, total, total, total))
        return self._target.folder

    def _save(self, record: Record) -> None:
        """On a full drive what is known stays in memory, and costs one more comparison after a restart."""
        self._record = record
        try:
            self._records.put(record)
        except EngineError as error:
            _log.warning("%s", error)

    def _amounts_of_others(self, file: RemoteFile) -> tuple[int, int]:
        """Bytes of all files but this one that are there, and that have been compared."""
        done = verified = 0
        for other in self._repository.files:
            place = self._target.place(other)
            known = self._record.known(place)
            if other == file:
                continue
            if known is not None and known.is_unchanged:
                verified += other.size
            is_there = self._is_present(other)
            done += other.size if is_there else bytes_in_part(place, other.size, other.checksum)
        return done, verified

    def _send(self, file: RemoteFile, trouble: str = "", standing: Standing | None = None) -> None:
        done, verified = self._others
        if standing is not None:
            done, verified, trouble = done + standing.there_bytes, verified + standing.hashed_bytes, standing.trouble
        else:
            place = self._target.place(file)
            done += file.size if self._is_present(file) else bytes_in_part(place, file.size, file.checksum)
        self._report(Report(self._repository.commit, self._repository.nbytes, done, verified, file.name, trouble))
