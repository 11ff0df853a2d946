"""The pages over the real download child and a fake hub: find, judge, download, run, remove."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.backends.store import Store
from app.pages.models import ModelsPage
from app.pages.models.page import Asker
from app.pages.services import Services
from app.pages.wizard import WizardPage
from engine.protocol import DownloadState
from tests.app.conftest import services_over
from tests.app.test_models_page import choose, row_of, show, views
from tests.helpers.tiny import write_mixtral
from tests.hub.process import environment
from tests.hub.server import FakeHub

REPO = "maker/Tiny-8x1"
TOKEN = "hf_secretsecretsecret"
WAIT_MS = 30_000


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """With a small model that loads; the child that a test starts finds it and no other."""
    folder = write_mixtral(tmp_path / "tiny", torch.bfloat16)
    with FakeHub() as hub:
        hub.tokens = {TOKEN}
        files: dict[str, bytes | Path] = {item.name: item.read_bytes() for item in folder.iterdir()}
        hub.add(REPO, files | {"README.md": b"# Tiny\n\nSays little."}, parameters={"BF16": 100_000})
        hub.add("maker/Gated-8x1", files, gate="auto", accepted={TOKEN})
        for name, value in environment(hub, tmp_path).items():
            monkeypatch.setenv(name, value)
        yield hub


@pytest.fixture
def page(hub: FakeHub, services: Services, qtbot: QtBot, qapp: QApplication) -> Iterator[ModelsPage]:
    store = Store()
    real = services_over(services.paths, services.chats, services.engine, store)
    real.theme.apply(qapp)
    page = ModelsPage(real, asker=Asker(lambda *_: "", lambda *_: True))
    qtbot.addWidget(page)
    page.resize(1224, 744)
    page.show()
    page.activate()
    qtbot.waitUntil(lambda: page._library.models is not None and bool(page._browser.catalogue), timeout=WAIT_MS)
    yield page
    store.stop()


def test_from_the_search_to_a_model_that_runs_and_back(
    qtbot: QtBot, page: ModelsPage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert len(page._browser.catalogue) >= 15
    assert page._library.models == ()
    page._search("tiny")
    qtbot.waitUntil(lambda: bool(views(page)) and bool(views(page)[0].chip), timeout=WAIT_MS)
    assert (views(page)[0].title, views(page)[0].chip, views(page)[0].actions[0][0]) == ("Tiny-8x1", "Fits in RAM", "Get")
    page._open(REPO)
    qtbot.waitUntil(lambda: page._details._card._text == "# Tiny\n\nSays little.", timeout=WAIT_MS)
    page._leave_details()
    page._get(REPO)
    qtbot.waitUntil(lambda: views(page)[0].actions[0][0] == "Run", timeout=WAIT_MS)
    assert page._services.downloads.jobs[0].state is DownloadState.DONE
    show(page, "here")
    assert (views(page)[0].title, views(page)[0].chip) == (REPO, "Verified")
    choose(row_of(page, REPO), "Compare with checksums")
    qtbot.waitUntil(lambda: "matches its checksum" in page._notice.sentence, timeout=WAIT_MS)
    trash = tmp_path / "trash"
    trash.mkdir()
    monkeypatch.setattr(
        "app.pages.models.library.QFile.moveToTrash", lambda name: Path(name).rename(trash / Path(name).name) is not None
    )
    choose(row_of(page, REPO), "Remove…")
    qtbot.waitUntil(lambda: views(page) == [], timeout=WAIT_MS)
    assert sum(item.stat().st_size for item in trash.iterdir()) > 100_000
    assert not list((tmp_path / "hf").rglob("*.safetensors"))


def test_a_gated_model_comes_after_signing_in(qtbot: QtBot, page: ModelsPage) -> None:
    queue = page._services.downloads
    page._open("maker/Gated-8x1")
    qtbot.waitUntil(lambda: page._details._sign_in.isVisible(), timeout=WAIT_MS)
    page._get("maker/Gated-8x1")
    qtbot.waitUntil(lambda: bool(queue.jobs) and queue.jobs[0].code == "hub.gated", timeout=WAIT_MS)
    page._services.token.save(TOKEN, keep=False)
    queue.resume("maker/Gated-8x1")
    qtbot.waitUntil(lambda: queue.jobs[0].state is DownloadState.DONE, timeout=WAIT_MS)


def test_the_set_up_looks_measures_until_cancelled_plans_and_downloads(
    hub: FakeHub, services: Services, qtbot: QtBot, qapp: QApplication
) -> None:
    store = Store()
    real = services_over(services.paths, services.chats, services.engine, store)
    real.theme.apply(qapp)
    page = WizardPage(real)
    qtbot.addWidget(page)
    page.resize(1280, 800)
    page.show()
    page.activate()
    control = page._controller
    qtbot.waitUntil(lambda: control.flow.facts is not None and control.catalogue is not None, timeout=WAIT_MS)
    assert control.flow.machine is not None
    assert control.flow.machine.ram_total > 1e9
    assert control.flow.rates is not None
    assert control.flow.rates.unknown == "this computer has not been measured yet"
    control.measure()
    qtbot.waitUntil(lambda: control.flow.measuring is not None and bool(control.flow.measuring.stage), timeout=WAIT_MS)
    control.stop_measuring()
    qtbot.waitUntil(lambda: not control.is_measuring, timeout=WAIT_MS)
    assert control.flow.measure_failure is None
    assert not control.flow.has_rates
    control.choose(REPO)
    qtbot.waitUntil(lambda: control.flow.best_plan is not None, timeout=WAIT_MS)
    plan = control.flow.best_plan
    assert plan is not None
    assert plan.unknown == "Cannot estimate, because this computer has not been measured yet."
    before = hub.sent_bytes
    control.wish(context=64)
    qtbot.waitUntil(lambda: control.flow.verdict is not None and not control.flow.is_planning, timeout=WAIT_MS)
    assert hub.sent_bytes == before, "headers are not read again"
    control.forget_wishes()
    qtbot.waitUntil(lambda: not control.flow.is_planning, timeout=WAIT_MS)
    with qtbot.waitSignal(page.opening_wanted, timeout=WAIT_MS) as opened:
        control.finish()
    assert opened.args == ["chat", REPO]
    store.stop()
