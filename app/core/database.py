"""Opens a SQLite file so that two processes, a crash, an old schema or a corrupt page do not lose what is in it.

Knows nothing of what is stored: the caller hands over the schema as a list of migrations.
"""

import logging
import os
import sqlite3
import time
from pathlib import Path

from app.core.paths import corrupt_name

_log = logging.getLogger(__name__)
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY_SECONDS = 5.0  # while opening
_BUSY_MS = 200  # afterwards: the window does not answer while it waits, and whatever failed is tried again

Migration = tuple[str, ...]  # statements; number n brings a database of version n to version n + 1


class DatabaseTooNewError(Exception):
    """Written by a newer version of this program; it is left untouched."""


def open_database(path: Path, migrations: tuple[Migration, ...]) -> tuple[sqlite3.Connection, str]:
    """(connection in autocommit mode, notice for the person or "").

    A corrupt file is moved aside and a new one begun. Raises `DatabaseTooNewError`, and sqlite3.OperationalError where the
    file cannot be opened at all (no permission, no space, locked for longer than five seconds).
    """
    try:
        return _open(path, migrations), ""
    except sqlite3.DatabaseError as error:
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) not in _CORRUPT:
            raise
        _log.error("database %s is corrupt: %s", path, error)
    kept = _set_aside(path)
    notice = f"The chats could not be read, so the list starts empty. The old file is kept as {kept.name}."
    return _open(path, migrations), notice


def _open(path: Path, migrations: tuple[Migration, ...]) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        _switch_to_wal(connection)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        _migrate(connection, migrations)
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Tried again: one switch in 2400 found another connection doing the same and did not wait for it (SQLite 3.40)."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def _migrate(connection: sqlite3.Connection, migrations: tuple[Migration, ...]) -> None:
    """One transaction, begun as a writer: of two processes one migrates and the other finds it done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS schema (version INTEGER NOT NULL)")
        row = connection.execute("SELECT version FROM schema").fetchone()
        version = row[0] if row else 0
        if version > len(migrations):
            raise DatabaseTooNewError(f"The chats were written by a newer version of Stoker (format {version}).")
        for statements in migrations[version:]:
            for statement in statements:
                connection.execute(statement)
        if row is None:
            connection.execute("INSERT INTO schema VALUES (?)", (len(migrations),))
        elif version < len(migrations):
            connection.execute("UPDATE schema SET version = ?", (len(migrations),))
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _set_aside(path: Path) -> Path:
    """Move the file with its journal, so that it can still be rescued by hand."""
    kept = corrupt_name(path, time.time())
    os.replace(path, kept)
    for suffix in ("-wal", "-shm"):
        companion = path.with_name(path.name + suffix)
        if companion.exists():
            os.replace(companion, kept.with_name(kept.name + suffix))
    return kept
