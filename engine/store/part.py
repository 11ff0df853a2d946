"""One file while it arrives: `NAME.part` with its bytes, `NAME.part.log` with what is known of it and which ranges are there.

The log is lines of JSON: a head, then one line per range, appended once its bytes are handed to the drive. A process that is
killed at any moment loses what was in flight and no more. Bytes go past the page cache where the system lets them: a download
of 200 GB must not push out the pages of the model that is running.
"""

import errno
import json
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.store.ranges import Ranges

BLOCK = 4096  # unbuffered writes want offset, length and address in multiples of it
PIECE = 1 << 20  # bytes: unbuffered writes of 1 MiB reach 2.4 GB/s where 4 MiB reach 3.6, and a kill loses fewer
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(Exception):
    """The drive took no more; everything written before is kept."""


@dataclass(frozen=True, slots=True)
class Head:
    """What the bytes belong to: other bytes under the same name are not continued."""

    size: int
    checksum: str  # "sha256:…", "git-sha1:…", or empty
    etag: str = ""  # strong one of the server that sent the first bytes


def aligned_buffer(nbytes: int) -> memoryview:
    """Zeroed memory that starts on a page."""
    return memoryview(mmap.mmap(-1, nbytes))


class PartFile:
    """Positioned writes and reads. One thread writes; any thread may read what has been written."""

    def __init__(self, target: Path, size: int, checksum: str) -> None:
        """Continue what is there when it is of the same file, else begin. Raises `DiskFullError` or OSError."""
        self.path, self.log_path = part_paths(target)
        self._target = target
        found = _read_log(self.log_path, self.path)
        is_same = found is not None and (found[0].size, found[0].checksum) == (size, checksum)
        self.head, self._ranges = found if found is not None and is_same else (Head(size, checksum), Ranges())
        self._ranges_lock = threading.Lock()
        self._log_end = 0
        self._direct: int | None = None
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _disk_full_told(), ExitStack() as on_failure:
            self._buffered = os.open(self.path, _FLAGS, 0o644)
            on_failure.callback(os.close, self._buffered)
            self._log = os.open(self.log_path, _FLAGS, 0o644)
            on_failure.callback(os.close, self._log)
            if not is_same:
                os.ftruncate(self._buffered, 0)
            self._write_log()
            self._direct = _open_direct(self.path)
            on_failure.pop_all()
        self._is_open = True

    @property
    def nbytes(self) -> int:
        """How many bytes are there."""
        with self._ranges_lock:
            return self._ranges.nbytes

    def end_of(self, offset: int) -> int:
        """Up to where everything from `offset` on is there."""
        with self._ranges_lock:
            return self._ranges.end_of(offset)

    def missing(self) -> list[tuple[int, int]]:
        with self._ranges_lock:
            return self._ranges.missing(self.head.size)

    def restart(self, etag: str) -> None:
        """Forget all bytes: the server sends another content now."""
        os.ftruncate(self._buffered, 0)
        self.head, self._ranges = Head(self.head.size, self.head.checksum, etag), Ranges()
        with _disk_full_told():
            self._write_log()

    def note_etag(self, etag: str) -> None:
        self.head = Head(self.head.size, self.head.checksum, etag)
        with _disk_full_told():
            self._append(json.dumps({"etag": etag}))

    def write(self, offset: int, view: memoryview) -> None:
        """All of `view` at `offset`, on the drive's side and in the log when it returns. Raises `DiskFullError` or OSError."""
        with _disk_full_told():
            direct = self._write_direct(offset, view)
            if direct < len(view):
                _write_all(self._buffered, view[direct:], offset + direct)
                _drop_from_cache(self._buffered, offset + direct, len(view) - direct)
            self._append(f"[{offset},{offset + len(view)}]")
        with self._ranges_lock:
            self._ranges.add(offset, offset + len(view))

    def read(self, offset: int, view: memoryview) -> None:
        """All of a page-aligned `view` from `offset` on, of bytes that are there. Raises OSError."""
        is_aligned = offset % BLOCK == 0 and len(view) % BLOCK == 0 and offset + len(view) <= self.head.size
        if self._direct is not None and is_aligned:
            count = _read_into(self._direct, view, offset)
        else:
            count = _read_into(self._buffered, view, offset)
            _drop_from_cache(self._buffered, offset, count)
        if count != len(view):
            raise OSError(errno.EIO, f"{self.path.name} was cut short by something else")

    def finish(self) -> None:
        """The bytes are right: make them durable under the final name."""
        os.ftruncate(self._buffered, self.head.size)
        os.fsync(self._buffered)
        self.close()
        os.replace(self.path, self._target)
        self.log_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keeps both files. May be called again."""
        for descriptor in (self._buffered, self._log, self._direct) if self._is_open else ():
            if descriptor is not None:
                os.close(descriptor)
        self._is_open = False

    def _write_direct(self, offset: int, view: memoryview) -> int:
        """How many of the first bytes went past the page cache."""
        count = len(view) // BLOCK * BLOCK
        if self._direct is None or not count or offset % BLOCK:
            return 0
        try:
            _write_all(self._direct, view[:count], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            os.close(self._direct)  # opened without complaint, but larger blocks are wanted
            self._direct = None
            return 0
        return count

    def _write_log(self) -> None:
        """The log anew and short: the head, then one line per range."""
        lines = [json.dumps(asdict(self.head)), *(f"[{first},{end}]" for first, end in self._ranges)]
        self._log_end = 0
        self._append("\n".join(lines))
        os.ftruncate(self._log, self._log_end)

    def _append(self, text: str) -> None:
        line = f"{text}\n".encode()
        _write_all(self._log, memoryview(line), self._log_end)  # at a known place: a line that was cut short is overwritten
        self._log_end += len(line)


def part_paths(target: Path) -> tuple[Path, Path]:
    """The files in which `target` gathers: its bytes, their log."""
    return target.with_name(f"{target.name}.part"), target.with_name(f"{target.name}.part.log")


def bytes_in_part(target: Path, size: int, checksum: str) -> int:
    """How much of a file is there already, without opening it for writing."""
    part, log = part_paths(target)
    found = _read_log(log, part)
    return found[1].nbytes if found is not None and (found[0].size, found[0].checksum) == (size, checksum) else 0


def discard_part(target: Path) -> None:
    """The bytes are wrong or not wanted: remove them and what is known of them."""
    for path in part_paths(target):
        path.unlink(missing_ok=True)


def _read_log(log: Path, part: Path) -> tuple[Head, Ranges] | None:
    """None where it cannot be trusted; a last line that was cut short is left out."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        length = part.stat().st_size
    except OSError:
        return None
    head, ranges = None, Ranges()
    for line in lines:
        try:
            value = json.loads(line)
            if head is None:
                head = Head(int(value["size"]), str(value["checksum"]), str(value["etag"]))
            elif isinstance(value, dict):
                head = Head(head.size, head.checksum, str(value["etag"]))
            else:
                first, end = value
                if not 0 <= first < end <= min(head.size, length):
                    return None  # the part was cut or exchanged
                ranges.add(first, end)
        except (ValueError, KeyError, TypeError):
            break
    return None if head is None else (head, ranges)


def _open_direct(path: Path) -> int | None:
    """A second descriptor past the page cache; None where the file system refuses one."""
    if sys.platform == "darwin":
        import fcntl

        descriptor = os.open(path, _FLAGS)
        fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
        return descriptor
    if not hasattr(os, "O_DIRECT"):
        return None
    try:
        descriptor = os.open(path, _FLAGS | os.O_DIRECT)
    except OSError:
        return None
    return descriptor


if sys.platform == "win32":
    _seek_lock = threading.Lock()  # there are no positioned reads and writes

    def _write_some(descriptor: int, view: memoryview, offset: int) -> int:
        with _seek_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            return os.write(descriptor, view)

    def _read_into(descriptor: int, view: memoryview, offset: int) -> int:
        with _seek_lock:
            os.lseek(descriptor, offset, os.SEEK_SET)
            data = os.read(descriptor, len(view))
        view[: len(data)] = data
        return len(data)

else:
    _write_some = os.pwrite

    def _read_into(descriptor: int, view: memoryview, offset: int) -> int:
        return os.preadv(descriptor, [view], offset)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        done += _write_some(descriptor, view[done:], offset + done)


def _drop_from_cache(descriptor: int, offset: int, count: int) -> None:
    """Let the system forget pages that nobody reads again; dirty ones only go once they are on the drive."""
    if hasattr(os, "posix_fadvise"):
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, offset, count, os.POSIX_FADV_DONTNEED)


@contextmanager
def _disk_full_told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFullError from error
        raise
