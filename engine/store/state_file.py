"""A small JSON object in a file that several processes read and change: never half written, never changed by two at once."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from engine.errors import EngineError

_LOCK_SECONDS = 20.0


class StateFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        """What it holds; empty where there is none. An unreadable one is put aside under another name."""
        try:
            value = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._refused("read", error) from error
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
        aside = self.path.with_name(f"{self.path.name}.corrupt-{int(time.time())}")
        try:
            os.replace(self.path, aside)
        except OSError as error:
            raise self._refused("put aside", error) from error
        return {}

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """The value to change in place; written when the block ends without an error. Raises `EngineError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path.with_name(f"{self.path.name}.lock"), timeout=_LOCK_SECONDS):
                value = self.read()
                yield value
                self._write(value)
        except (OSError, TimeoutError) as error:
            raise self._refused("written", error) from error

    def _write(self, value: dict[str, Any]) -> None:
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            with new.open("w", encoding="utf-8") as stream:
                json.dump(value, stream, indent=1)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(new, self.path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def _refused(self, verb: str, error: OSError) -> EngineError:
        text = f"{self.path} cannot be {verb}: {error.strerror or error}."
        return EngineError("store.state", text, "Check the drive: is it full, or write-protected?")
