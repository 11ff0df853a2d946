"""What the tests of downloads do again and again."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from engine.store.download import Download, Order, Report
from engine.store.records import Records
from engine.store.web import Line, StoppedError
from tests.hub.server import FakeHub, Repo

REPO = "maker/Model-8x1"
SHARD = "model-00001-of-00002.safetensors"
SECOND = "model-00002-of-00002.safetensors"
NEEDED = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json", SHARD, SECOND,
}  # fmt: skip


@dataclass
class Pull:
    """One download as a process would run it; `reports` are what it told."""

    line: Line
    data: Path
    order: Order = field(default_factory=lambda: Order(REPO))
    reports: list[Report] = field(default_factory=list)

    def run(self, is_stopped: Callable[[Report | None], bool] = lambda _: False) -> Path:
        def stopped() -> bool:
            return is_stopped(self.reports[-1] if self.reports else None)

        return Download(self.order, self.line, Records(self.data), stopped, self.reports.append).run()

    def run_until(self, done_bytes: int) -> None:
        """Stopped, as by a pause, when so much has come."""
        try:
            self.run(lambda report: report is not None and report.done_bytes >= done_bytes)
        except StoppedError:
            return
        raise AssertionError("it ended before it could be stopped")

    @property
    def troubles(self) -> str:
        return "\n".join(dict.fromkeys(report.trouble for report in self.reports if report.trouble))


def assert_same(folder: Path, repo: Repo, names: set[str] | None = None) -> None:
    """`folder` holds these files of the repository, byte for byte, and nothing else."""
    assert {item.name for item in folder.iterdir()} == (names or NEEDED)
    for name in names or NEEDED:
        content = repo.files[name]
        assert isinstance(content, bytes)
        assert hashlib.sha256((folder / name).read_bytes()).digest() == hashlib.sha256(content).digest(), name


def leftovers(place: Path) -> list[str]:
    """Files in which something still gathers."""
    return sorted(path.name for path in place.rglob("*.part*"))


def sent_for(hub: FakeHub, file: str) -> int:
    """How many requests for a file brought bytes."""
    return sum(seen.status in (200, 206) for seen in hub.requests_for(file))
