"""Where the program writes what a person need not read. Chats and prompts are never logged:
of a line that nobody understands, its length and its first 20 characters at most."""

import faulthandler
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler

from app.core.paths import Paths

_BYTES = 1_000_000


@contextmanager
def log_files(paths: Paths) -> Iterator[None]:
    """Log records go to `paths.log`, the stack of a hard crash to `paths.crash_log`, while the body runs."""
    handler = RotatingFileHandler(paths.log, maxBytes=_BYTES, backupCount=2, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    with paths.crash_log.open("a", encoding="utf-8") as crash_file:
        faulthandler.enable(crash_file)
        try:
            yield
        finally:
            faulthandler.disable()
            root.removeHandler(handler)
            root.setLevel(level)
            handler.close()
