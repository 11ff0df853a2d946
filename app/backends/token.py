"""The access token for the Hub: in the system's keyring, else in a file that only this person can read. Never in a log.

An empty value leaves the choice to the engine: HF_TOKEN, or what the Hub's own tools have left.
"""

import contextlib
import importlib
import logging
import os
import threading
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)
_SERVICE, _USER = "stoker", "huggingface"
_PATIENCE_SECONDS = 3.0  # a keyring may wait for a password, or for a bus that nobody serves


class TokenStore:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._value: str | None = None
        self._reader = threading.Thread(target=self._read, name="keyring", daemon=True)
        self._reader.start()

    @property
    def value(self) -> str:
        if self._value is None:
            self._reader.join(_PATIENCE_SECONDS)
        return self._value or ""

    def save(self, token: str, *, keep: bool = True) -> str:
        """Use it from now on; where it is kept, in words for the person. An empty one is forgotten everywhere."""
        self._value = token
        if not token:
            self._forget()
            return "The token has been forgotten."
        if not keep:
            return "The token is used until Stoker is closed."
        if _in_time(lambda ring: ring.set_password(_SERVICE, _USER, token)):
            self._file.unlink(missing_ok=True)
            return "The token is kept in the system's keyring."
        try:
            self._write(token)
        except OSError as error:
            _log.warning("token not kept: %s", error.strerror)
            return f"The token is used until Stoker is closed; it could not be kept: {error.strerror}."
        return f"This system has no keyring that answers: the token is kept in {self._file}, which only you can read."

    def _read(self) -> None:
        found: list[str | None] = []
        _in_time(lambda ring: found.append(ring.get_password(_SERVICE, _USER)))
        token = found[0] if found else None
        if not token:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                token = self._file.read_text(encoding="utf-8").strip()
        if self._value is None:
            self._value = token or ""

    def _write(self, token: str) -> None:
        self._file.unlink(missing_ok=True)
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(token)

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        _in_time(lambda ring: ring.delete_password(_SERVICE, _USER))


def _keyring() -> Any:
    """The package with a backend that works; None where there is none."""
    try:
        ring = importlib.import_module("keyring")
        backend = ring.get_keyring()
    except Exception as error:  # a broken backend raises whatever it likes
        _log.info("no keyring: %s", type(error).__name__)
        return None
    return ring if getattr(backend, "priority", 0) > 0 else None


def _in_time(act: Any) -> bool:
    """Whether the keyring did it before the patience ended."""
    ring, worked = _keyring(), threading.Event()
    if ring is None:
        return False

    def run() -> None:
        try:
            act(ring)
            worked.set()
        except Exception as error:
            _log.info("the keyring refused: %s", type(error).__name__)

    thread = threading.Thread(target=run, name="keyring call", daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return worked.is_set()
