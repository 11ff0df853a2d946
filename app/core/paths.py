"""Where the window keeps its files. Knows names only: what is in them is known by whoever reads them."""

from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path


def data_dir() -> Path:
    """The folder of this person's Stoker data. Not a cache: nothing in it may be cleaned away."""
    return user_data_path("stoker", appauthor=False)


@dataclass(frozen=True, slots=True)
class Paths:
    """Every file of the window below one folder."""

    data: Path

    @property
    def chats(self) -> Path:
        return self.data / "chats.sqlite"

    @property
    def settings(self) -> Path:
        return self.data / "settings.json"

    @property
    def token(self) -> Path:
        return self.data / "hub-token"

    @property
    def log(self) -> Path:
        return self.data / "logs" / "stoker.log"

    @property
    def crash_log(self) -> Path:
        return self.data / "logs" / "crash.log"

    @property
    def lock(self) -> Path:
        return self.data / "window.lock"

    def create(self) -> None:
        """Make the folders. Raises OSError where that is not allowed."""
        self.log.parent.mkdir(parents=True, exist_ok=True)


def app_paths(data: Path | None = None) -> Paths:
    """Below `data`, by default below `data_dir()`; the folders exist afterwards."""
    paths = Paths((data or data_dir()).absolute())
    paths.create()
    return paths


def corrupt_name(path: Path, seconds: float) -> Path:
    """Where an unreadable file is kept: 'chats.sqlite.corrupt-1764633600'. Never a name that is taken."""
    for suffix in ("", *(f"-{number}" for number in range(2, 1000))):
        candidate = path.with_name(f"{path.name}.corrupt-{int(seconds)}{suffix}")
        if not candidate.exists():
            return candidate
    raise AssertionError(f"a thousand unreadable copies of {path} in one second")
