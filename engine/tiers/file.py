"""One open file for positioned reads: direct where the file system allows it, through the system's cache elsewhere."""

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from engine.tiers.arena import BLOCK

if sys.platform != "win32":
    import fcntl

_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

Identity = tuple[int, int, int]  # inode, bytes, time of the last change in ns: what tells a file from another of its name


def identity_of(status: os.stat_result) -> Identity:
    return status.st_ino, status.st_size, status.st_mtime_ns


class DirectFile:
    """Safe to read from several threads. Raises `OSError`; `tell_buffered(path)` once direct reads are refused."""

    def __init__(self, path: Path, tell_buffered: Callable[[Path], None]) -> None:
        self._path, self._tell_buffered = path, tell_buffered
        self._seek_lock = threading.Lock()
        self._is_direct = True
        try:
            self._descriptor = self._open_direct()
        except OSError:
            self._fall_back()
        self.identity = identity_of(os.fstat(self._descriptor))

    def _open_direct(self) -> int:
        if sys.platform == "darwin":
            descriptor = os.open(self._path, _FLAGS)
            fcntl.fcntl(descriptor, fcntl.F_NOCACHE, 1)
            return descriptor
        if not hasattr(os, "O_DIRECT"):
            raise OSError(errno.EINVAL, "no direct reads on this system")
        return os.open(self._path, _FLAGS | os.O_DIRECT)

    def _fall_back(self) -> None:
        self._descriptor = os.open(self._path, _FLAGS)
        self._is_direct = False
        self._tell_buffered(self._path)

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill `target` from `offset`; returns the bytes read, fewer only at the end of the file."""
        got = 0
        while got < len(target):
            count = self._read_direct_or_buffered(offset + got, target[got:])
            got += count
            if count == 0 or (self._is_direct and count % BLOCK):  # only the file's tail is no whole block
                break
        return got

    def _read_direct_or_buffered(self, offset: int, target: memoryview) -> int:
        """Some file systems grant a direct open and refuse the read."""
        try:
            return self._read_some(offset, target)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._is_direct:
                raise
        with self._seek_lock:
            if self._is_direct:
                refused = self._descriptor
                self._fall_back()
                os.close(refused)
        return self._read_some(offset, target)

    def _read_some(self, offset: int, target: memoryview) -> int:
        if hasattr(os, "preadv"):
            return os.preadv(self._descriptor, [target], offset)
        with self._seek_lock:  # Windows has no positioned read in the standard library
            os.lseek(self._descriptor, offset, os.SEEK_SET)
            data = os.read(self._descriptor, len(target))
        target[: len(data)] = data
        return len(data)

    def close(self) -> None:
        os.close(self._descriptor)
