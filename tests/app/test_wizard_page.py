"""The set-up page over a fake download child: on many computers, with what may fail, by keyboard alone, in small windows."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.core.wizard import Step
from app.main_window import MainWindow
from app.pages.chat import ChatPage
from app.pages.services import Services
from app.pages.wizard import WizardPage
from app.widgets.elided_label import ElidedLabel
from app.widgets.model_row import ModelRow
from app.widgets.price_row import PriceRow
from app.widgets.step_list import StepList
from app.widgets.token_dialog import TokenDialog
from engine.hardware.probe import probe_all
from engine.protocol import DownloadState, KvType, Link, MachineFacts, Plan, encode
from tests.app.conftest import MakeStore, services_over
from tests.engine.machines import NAMES, computer

ROOT = Path(__file__).parents[2]
HUB = "Qwen/Qwen3-30B-A3B-Instruct-2507"
MakePage = Callable[..., WizardPage]


@pytest.fixture
def make_page(services: Services, make_store: MakeStore, qtbot: QtBot, qapp: QApplication) -> MakePage:
    """`make_page("bench-dies", "--plan", "ram")`; it has looked at the computer."""

    def make(*mode: str, folder: str = "", size: tuple[int, int] = (1280, 800)) -> WizardPage:
        over = services_over(services.paths, services.chats, services.engine, make_store(*(mode or ("normal",))))
        over.theme.apply(qapp)
        page = WizardPage(over, ask_folder=lambda parent, title: folder)
        qtbot.addWidget(page)
        page.resize(*size)
        page.show()
        over.downloads.begin()
        page.activate()
        qtbot.waitUntil(
            lambda: page._controller.flow.facts is not None and page._controller.catalogue is not None, timeout=10_000
        )
        return page

    return make


def words(page: QWidget) -> str:
    return " ".join(label.text() for label in page.findChildren(QLabel) if label.isVisible())


def button(page: QWidget, text: str) -> QPushButton:
    return next(item for item in page.findChildren(QPushButton) if item.isVisible() and item.text() == text)


def has_button(page: QWidget, text: str) -> bool:
    return any(item.isVisible() and item.text() == text for item in page.findChildren(QPushButton))


def step_of(page: WizardPage) -> Step:
    return page._controller.flow.step


def to_plan(page: WizardPage, qtbot: QtBot, key: str = HUB) -> None:
    page._controller.choose(key)

    def is_answered() -> bool:
        flow = page._controller.flow
        return not flow.is_planning and (flow.plan is not None or flow.plan_failure is not None)

    qtbot.waitUntil(is_answered, timeout=5000)


@pytest.fixture(params=NAMES)
def machine_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    machine = probe_all([tmp_path], computer(request.param, tmp_path / "root"))
    file = tmp_path / "machine.json"
    file.write_text(encode(MachineFacts(0, machine)))
    return str(file)


def test_each_kind_of_computer_is_shown_and_goes_on_to_a_plan(make_page: MakePage, qtbot: QtBot, machine_file: str) -> None:
    page = make_page("normal", "--machine", machine_file)
    machine = page._controller.flow.machine
    assert machine is not None
    told = words(page)
    for gpu in machine.gpus:
        assert gpu.name in told
        assert gpu.trouble in told
    assert all(notice in told for notice in machine.notices)
    is_used = any(gpu.is_usable for gpu in machine.gpus)
    assert ("goes on with processor, memory and disk" in told) != is_used
    button(page, "Skip measuring").click()
    to_plan(page, qtbot)
    assert "Cannot estimate, because" in words(page)
    assert button(page, "Download and start").isEnabled()


def test_measuring_shows_progress_and_then_speeds(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page()
    button(page, "Measure (15 s)").click()
    qtbot.waitUntil(lambda: "Drive, memory and layers" in words(page), timeout=5000)
    qtbot.waitUntil(lambda: "43.2 GB/s" in words(page), timeout=10_000)
    assert "MXFP4" in words(page)
    button(page, "Choose a model").click()
    to_plan(page, qtbot)
    assert "Cannot estimate" not in words(page)
    assert "3.0–4.7" in words(page)


def test_a_cancelled_measurement_leaves_no_trace_and_blocks_nothing(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("bench-slow")
    button(page, "Measure (15 s)").click()
    qtbot.waitUntil(lambda: "Drive, memory and layers" in words(page), timeout=5000)
    assert page.focusWidget() is button(page, "Cancel"), "what had the keyboard is gone"
    button(page, "Cancel").click()
    qtbot.waitUntil(lambda: not page._controller.is_measuring, timeout=5000)
    assert "Not measured yet" in words(page)
    button(page, "Skip").click()
    assert step_of(page) is Step.CHOOSE


@pytest.mark.parametrize(("mode", "said"), [("bench-fails", "The measurement crashed (SIGILL)."), ("bench-dies", "downloader")])
def test_a_measurement_that_fails_says_why_and_the_set_up_goes_on(
    make_page: MakePage, qtbot: QtBot, mode: str, said: str
) -> None:
    page = make_page(mode)
    button(page, "Measure (15 s)").click()
    qtbot.waitUntil(lambda: "Not measured:" in words(page), timeout=10_000)
    assert said in words(page)
    assert has_button(page, "Measure")
    button(page, "Skip").click()
    to_plan(page, qtbot)
    assert "Cannot estimate, because this computer has not been measured yet." in words(page)
    assert has_button(page, "Measure this computer")


def test_each_choice_is_priced_and_planned_anew(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot)
    context, kept, chunk, vram, experts = page.findChildren(PriceRow)
    assert not vram.isVisible(), "there is no card"
    assert context.words[0] == "8K tokens"
    assert "per doubling" in context.words[1]
    assert chunk.words[0] == "512 tokens"
    assert "per doubling" in chunk.words[1]
    assert "tok/s per GB" in experts.words[1]
    assert not has_button(page, "Reset to recommended")
    for _ in range(2):
        QTest.keyClick(context.slider, Qt.Key.Key_Right)
    qtbot.waitUntil(lambda: context.words[0] == "32K tokens", timeout=5000)
    QTest.keyClick(chunk.slider, Qt.Key.Key_Right)
    qtbot.waitUntil(lambda: chunk.words[0] == "1K tokens", timeout=5000)
    assert page._controller.flow.wishes.prefill_chunk == 1024
    before = page._controller.flow.best_plan
    QTest.keyClick(experts.slider, Qt.Key.Key_Home)
    qtbot.waitUntil(lambda: page._controller.flow.best_plan != before, timeout=5000)
    plan = page._controller.flow.best_plan
    assert plan is not None
    assert plan.expert_ram_bytes < 200e6
    assert page._controller.flow.wishes.context == 32768
    assert kept.words[0] == "16 bit"
    assert kept.words[1].endswith("with 8 bit")
    QTest.keyClick(kept.slider, Qt.Key.Key_Left)
    qtbot.waitUntil(lambda: kept.words[0] == "8 bit", timeout=5000)
    assert page._controller.flow.wishes.kv_type is KvType.Q8
    assert kept.words[1].startswith("+")
    button(page, "Reset to recommended").click()
    qtbot.waitUntil(lambda: context.words[0] == "8K tokens", timeout=5000)
    assert kept.words[0] == "16 bit"
    QTest.keyClick(experts.slider, Qt.Key.Key_Left)
    QTest.keyClick(experts.slider, Qt.Key.Key_End)
    assert page._controller.flow.wishes.expert_ram is None, "all the way up is for the planner to say"


def _settled(page: WizardPage, qtbot: QtBot) -> Plan:
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    plan = page._controller.flow.best_plan
    assert plan is not None
    return plan


def _limit(page: WizardPage) -> str | None:
    return page._controller.flow.wishes.vram_limit


def test_graphics_memory_is_a_choice_where_there_is_a_card(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured", "--plan", "gpu")
    to_plan(page, qtbot)
    rows = page.findChildren(PriceRow)
    assert [row.slider.accessibleName() for row in rows] == [
        "Context", "Keys and values", "Prompt at once", "Graphics memory", "Memory for experts",
    ]  # fmt: skip
    vram = rows[3]
    whole = _settled(page, qtbot)
    assert vram.isVisible()
    assert vram.slider.value() == vram.slider.maximum()
    assert vram.words[0] == "11.4 GB"
    assert re.fullmatch(r"6\.2\d GB of experts · −\d+\.\d tok/s without", vram.words[1])
    assert "VRAM" in words(page)
    assert not has_button(page, "Reset to recommended")

    QTest.keyClick(vram.slider, Qt.Key.Key_Home)
    plan = _settled(page, qtbot)
    assert _limit(page) == "0"
    assert vram.words[0] == "none"
    assert re.fullmatch(r"\+\d+\.\d tok/s with 11\.4 GB", vram.words[1])
    assert not plan.card_slots
    assert "stays unused: no graphics memory may be taken" in words(page)
    assert not any(tier.link is Link.VRAM for tier in plan.tiers), "the picture is of the new plan"

    QTest.keyClick(vram.slider, Qt.Key.Key_Right)
    plan = _settled(page, qtbot)
    assert plan.card_slots == (2,), "the first step after none is the least that works"
    assert "tok/s per GB" in vram.words[1]
    QTest.keyClick(vram.slider, Qt.Key.Key_End)
    assert _limit(page) is None, "all the way up is for the planner to say"
    assert _settled(page, qtbot) == whole


def test_graphics_memory_that_is_too_little_is_refused_and_the_slider_leads_back(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured", "--plan", "gpu")
    to_plan(page, qtbot)
    page._controller.wish(vram_limit="5200MB")
    assert _settled(page, qtbot).card_slots, "enough for 8K tokens"
    page._controller.wish(context=16_384)
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    assert page._controller.flow.best_plan is None
    assert "5200MB of graphics memory is too little" in words(page)
    assert "or to 0 to leave the graphics card unused" in words(page)
    vram = page.findChildren(PriceRow)[3]
    assert vram.isVisible()
    assert vram.words == ("5.20 GB", "")
    QTest.keyClick(vram.slider, Qt.Key.Key_Right)
    plan = _settled(page, qtbot)
    assert plan.context == 16_384
    assert plan.card_slots
    assert "too little" not in words(page)
    page._controller.wish(vram_limit="1MB")
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    assert "1MB of graphics memory is too little" in words(page)
    button(page, "Reset to recommended").click()
    assert _settled(page, qtbot).context == 8192
    assert vram.slider.value() == vram.slider.maximum()


def test_a_share_from_the_settings_has_its_place_on_the_slider(make_page: MakePage, services: Services, qtbot: QtBot) -> None:
    services.settings.vram_limit = "60%"
    page = make_page("normal", "--measured", "--plan", "gpu")
    to_plan(page, qtbot)
    vram = page.findChildren(PriceRow)[3]
    assert vram.words[0] == "6.84 GB"
    assert 0 < vram.slider.value() < vram.slider.maximum()
    assert _limit(page) == "60%", "showing it changes nothing"
    button(page, "Download and start").click()
    assert page._services.settings.vram_limit == "60%"


def test_the_chosen_graphics_memory_is_written_with_the_last_step(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured", "--plan", "gpu")
    to_plan(page, qtbot, "/models/stoker-demo-8x135m")
    vram = page.findChildren(PriceRow)[3]
    for _ in range(3):
        QTest.keyClick(vram.slider, Qt.Key.Key_Left)
    plan = _settled(page, qtbot)
    limit = _limit(page)
    assert limit is not None
    assert re.fullmatch(r"\d+MB", limit)
    assert sum(tier.used for tier in plan.tiers if tier.link is Link.VRAM) <= int(limit.removesuffix("MB")) * 10**6
    assert not page._services.paths.settings.exists()
    button(page, "Start").click()
    assert json.loads(page._services.paths.settings.read_text())["vram_limit"] == limit


def test_wishes_between_two_answers_are_left_out(make_page: MakePage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot)
    asked: list[object] = []
    ask = page._services.store.ask

    def noted(*args: Any, **kwargs: Any) -> int:
        asked.append(args)
        return ask(*args, **kwargs)

    monkeypatch.setattr(page._services.store, "ask", noted)
    for context in (512, 1024, 2048, 4096):
        page._controller.wish(context=context)
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    plan = page._controller.flow.best_plan
    assert plan is not None
    assert plan.context == 4096
    assert len(asked) == 2


def test_nothing_is_written_before_the_last_step(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    settings = page._services.paths.settings
    to_plan(page, qtbot)
    page._controller.wish(context=4096, expert_ram="9000MB", prefill_chunk=256, kv_type=KvType.Q8)
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    assert not settings.exists()
    assert page._services.downloads.jobs == ()
    with qtbot.waitSignal(page.opening_wanted, timeout=10_000) as opened:
        button(page, "Download and start").click()
    assert opened.args == ["chat", HUB], "when it is here, the chat begins"
    written = json.loads(settings.read_text())
    assert (written["context"], written["expert_ram"], written["has_set_up"]) == (4096, "9000MB", True)
    assert (written["prefill_chunk"], written["kv_type"]) == (256, "q8")
    job = page._services.downloads.job(HUB)
    assert job is not None
    assert job.state is DownloadState.DONE


def test_a_model_that_is_here_starts_at_once(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot, "/models/stoker-demo-8x135m")
    assert "nothing to download" in page._footer.hint
    with qtbot.waitSignal(page.opening_wanted, timeout=5000) as opened:
        button(page, "Start").click()
    assert opened.args == ["chat", "/models/stoker-demo-8x135m"]
    assert page._services.downloads.jobs == ()


def test_what_was_measured_here_stands_beside_the_prediction(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot)
    assert "Measured here" not in words(page)
    to_plan(page, qtbot, "/models/stoker-demo-8x135m")
    qtbot.waitUntil(lambda: "Measured here: 3.7 tok/s in the middle of the last 5 answers." in words(page), timeout=5000)


def test_without_a_network_it_says_so_and_can_be_tried_again(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("offline")
    to_plan(page, qtbot)
    assert "Cannot estimate, because its headers cannot be read" in words(page)
    assert "not online" in words(page)
    for text in ("Try again", "Choose another", "Download anyway"):
        assert has_button(page, text), text


def test_headers_that_cannot_be_read_block_nothing(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--plan", "unreadable")
    to_plan(page, qtbot)
    assert "holds no JSON object" in words(page)
    button(page, "Download anyway").click()
    qtbot.waitUntil(lambda: page._services.downloads.job(HUB) is not None, timeout=5000)


def test_a_repository_for_some_can_be_signed_in_to(make_page: MakePage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot, "maker/Gated-8x7B")
    assert "sign in" in words(page)

    def sign_in(dialog: TokenDialog) -> int:
        dialog._field.setText("hf_of_mine_alone")
        dialog._keep.setChecked(False)
        QTest.mouseClick(dialog._use, Qt.MouseButton.LeftButton)
        return 1

    monkeypatch.setattr(TokenDialog, "exec", sign_in)
    button(page, "Sign in…").click()
    qtbot.waitUntil(lambda: page._controller.flow.best_plan is not None, timeout=5000)
    assert not has_button(page, "Sign in…")
    to_plan(page, qtbot, "maker/Other")
    assert not has_button(page, "Sign in…")


def test_a_full_disk_offers_another_folder(make_page: MakePage, qtbot: QtBot, tmp_path: Path) -> None:
    page = make_page("normal", "--measured", "--plan", "full-disk", folder=str(tmp_path))
    to_plan(page, qtbot)
    assert "it needs 21.1 GB more" in words(page)
    assert has_button(page, "Download anyway")
    button(page, "Another folder…").click()
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    assert str(tmp_path) in page._footer.hint
    assert page._services.settings.download_folder == "", "not before the last step"
    button(page, "Download anyway").click()
    assert page._services.settings.download_folder == str(tmp_path)


def test_a_whole_drive_is_no_folder_for_models(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured", "--plan", "full-disk", folder=Path.cwd().anchor)
    to_plan(page, qtbot)
    button(page, "Another folder…").click()
    assert page._controller.flow.folder == ""
    assert "cannot hold models" in page._banner.sentence


def test_a_wish_that_cannot_be_met_is_refused_with_the_nearest_that_can(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot)
    page._controller.wish(context=131_072)
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    assert "Ask for a context of 8192." in words(page)
    button(page, "Reset to recommended").click()
    qtbot.waitUntil(lambda: page._controller.flow.best_plan is not None, timeout=5000)
    assert "Ask for" not in words(page)


def test_an_architecture_that_does_not_run_can_be_tried_all_the_same(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--plan", "unsupported")
    to_plan(page, qtbot)
    assert "does not run the architecture" in words(page)
    assert not any(row.isVisible() for row in page.findChildren(PriceRow))
    assert has_button(page, "Download anyway")


@pytest.mark.parametrize(
    ("typed", "key"),
    [("maker/Model", "maker/Model"), ("https://huggingface.co/maker/Model/", "maker/Model"), ("/models/x", "/models/x")],
)
def test_another_model_by_its_name_or_folder(make_page: MakePage, typed: str, key: str) -> None:
    page = make_page()
    page._controller.go(Step.CHOOSE)
    field = page.findChildren(QLineEdit)[0]
    field.setText("just words")
    QTest.keyClick(field, Qt.Key.Key_Return)
    assert step_of(page) is Step.CHOOSE
    assert "maker/model" in words(page)
    field.setText(typed)
    QTest.keyClick(field, Qt.Key.Key_Return)
    choice = page._controller.flow.choice
    assert choice is not None
    assert choice.key == key


def test_by_keyboard_alone_from_the_first_step_to_the_chat(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page()
    page.activateWindow()
    qtbot.waitUntil(page.isActiveWindow)

    def press(key: Qt.Key) -> None:
        focused = QApplication.focusWidget()
        assert focused is not None
        QTest.keyClick(focused, key)

    qtbot.waitUntil(lambda: QApplication.focusWidget() is page._footer.primary, timeout=5000)
    press(Qt.Key.Key_Space)  # measure
    qtbot.waitUntil(lambda: page._controller.flow.has_rates, timeout=10_000)
    assert step_of(page) is Step.MEASURE
    qtbot.waitUntil(lambda: QApplication.focusWidget() is page._footer.primary, timeout=5000)
    press(Qt.Key.Key_Space)  # choose
    qtbot.waitUntil(lambda: isinstance(QApplication.focusWidget(), ModelRow), timeout=5000)
    press(Qt.Key.Key_Down)
    press(Qt.Key.Key_Up)
    press(Qt.Key.Key_Down)
    press(Qt.Key.Key_Return)
    assert step_of(page) is Step.PLAN
    qtbot.waitUntil(lambda: QApplication.focusWidget() is page._footer.primary, timeout=5000)
    press(Qt.Key.Key_Escape)
    assert step_of(page) is Step.CHOOSE
    press(Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: QApplication.focusWidget() is page._footer.primary, timeout=5000)
    with qtbot.waitSignal(page.opening_wanted, timeout=10_000) as opened:
        press(Qt.Key.Key_Space)
    assert opened.args[0] == "chat"


@pytest.mark.parametrize("plan", ["disk", "gpu"])
def test_every_control_has_a_name_and_its_turn(make_page: MakePage, qtbot: QtBot, plan: str) -> None:
    page = make_page("normal", "--measured", "--plan", plan)
    to_plan(page, qtbot)
    page.activateWindow()
    qtbot.waitUntil(page.isActiveWindow)
    met: list[QWidget] = []
    while (focused := QApplication.focusWidget()) is not None and focused not in met:
        met.append(focused)
        QTest.keyClick(focused, Qt.Key.Key_Tab)
    names = [widget.accessibleName() or getattr(widget, "text", str)() for widget in met]
    assert all(names)
    assert {"Context", "Memory for experts", "Back", "Download and start", "Skip set-up"} <= set(names)
    assert ("Graphics memory" in names) == (plan == "gpu")
    rows = ["Context", "Keys and values", "Prompt at once", "Graphics memory", "Memory for experts"]
    assert [name for name in names if name in rows] == [name for name in rows if name in names], "as they stand"
    assert any(name.startswith("Step 1: Look") for name in names)


def _assert_whole(page: WizardPage, size: tuple[int, int]) -> None:
    """Nothing is cut off."""
    body = page._stack.currentWidget()
    assert body is not None
    area = body.area  # type: ignore[attr-defined]
    assert (page.width(), page.height()) == size, "it would not let itself be made smaller"
    assert area.widget().minimumSizeHint().width() <= area.viewport().width()
    for item in page.findChildren(QPushButton):
        if item.isVisible():
            assert item.width() >= item.minimumSizeHint().width(), item.text()
            right = item.mapTo(page, QPoint(item.width(), 0)).x()
            assert right <= page.width(), item.text()
    for label in page.findChildren(QLabel):
        if label.isVisible() and label.text() and not isinstance(label, ElidedLabel):
            height = label.heightForWidth(label.width()) if label.wordWrap() else label.sizeHint().height()
            assert label.height() >= height, label.text()
            assert label.wordWrap() or label.width() >= label.minimumSizeHint().width(), label.text()
    assert page.grab().size() == page.size() * float(os.environ.get("QT_SCALE_FACTOR", "1")), "drawn in the screen's own pixels"


@pytest.mark.parametrize("size", [(1224, 744), (968, 600), (704, 480)])
@pytest.mark.parametrize("step", [Step.LOOK, Step.MEASURE, Step.CHOOSE, Step.PLAN])
def test_nothing_is_cut_off_in_a_small_window(make_page: MakePage, qtbot: QtBot, size: tuple[int, int], step: Step) -> None:
    page = make_page("normal", "--measured", size=size)
    to_plan(page, qtbot)
    page._controller.go(step)
    qtbot.wait(50)
    _assert_whole(page, size)
    if step is Step.PLAN:
        figure = next(label for label in page.findChildren(QLabel) if label.text() == "3.0–4.7")
        assert figure.mapTo(page, QPoint(0, figure.height())).y() < page._footer.y(), "the speed is seen without scrolling"


@pytest.mark.parametrize("size", [(1224, 744), (968, 600), (704, 480)])
@pytest.mark.parametrize("limit", [None, "0", "6000MB", "1MB"])
def test_with_a_card_nothing_is_cut_off_either(
    make_page: MakePage, qtbot: QtBot, size: tuple[int, int], limit: str | None
) -> None:
    page = make_page("normal", "--measured", "--plan", "gpu", size=size)
    to_plan(page, qtbot)
    page._controller.wish(vram_limit=limit)
    qtbot.waitUntil(lambda: not page._controller.flow.is_planning, timeout=5000)
    qtbot.wait(50)
    assert page.findChildren(PriceRow)[3].isVisible()
    _assert_whole(page, size)


def test_nothing_is_cut_off_at_twice_the_scale() -> None:
    """The same in a process of its own, since Qt takes its scale when it starts."""
    env = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QT_SCALE_FACTOR": "2"}
    test = f"{Path(__file__).relative_to(ROOT)}::{test_nothing_is_cut_off_in_a_small_window.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout


def test_themes_change_in_place(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("normal", "--measured")
    to_plan(page, qtbot)
    bars = page._plan._where
    light = bars.grab().toImage().pixelColor(300, 45)
    page._services.theme.set_mode("dark")
    qtbot.waitUntil(lambda: bars.grab().toImage().pixelColor(300, 45) != light, timeout=2000)
    page._services.theme.set_mode("light")


@pytest.fixture
def window(services: Services, qtbot: QtBot, qapp: QApplication) -> MainWindow:
    services.theme.apply(qapp)
    window = MainWindow(services, first="wizard")
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    return window


def test_at_first_it_has_the_window_to_itself_and_can_be_left(window: MainWindow, services: Services) -> None:
    page = window.current_page
    assert isinstance(page, WizardPage)
    assert not window._rail.isVisible()
    button(page, "Skip set-up").click()
    assert isinstance(window.current_page, ChatPage)
    assert services.settings.has_set_up
    assert window._rail.isVisible()
    window.show_page("wizard")
    assert window._rail.isVisible()
    assert not has_button(page, "Skip set-up")


def test_closed_in_the_middle_it_comes_again(window: MainWindow, services: Services) -> None:
    window.close()
    assert not services.settings.has_set_up


def test_a_step_of_the_list_is_entered_by_a_click(window: MainWindow, qtbot: QtBot) -> None:
    page = window.current_page
    assert isinstance(page, WizardPage)
    steps = page.findChild(StepList)
    assert steps is not None
    names = [step.accessibleName() for step in steps._steps]
    assert names[0] == "Step 1: Look, open now"
    QTest.mouseClick(steps._steps[2], Qt.MouseButton.LeftButton)
    assert step_of(page) is Step.CHOOSE
    assert not steps._steps[3].isEnabled()


def test_the_meter_leads_to_the_plan_of_the_loaded_model(services: Services, qtbot: QtBot, qapp: QApplication) -> None:
    services.theme.apply(qapp)
    window = MainWindow(services)
    qtbot.addWidget(window)
    window.resize(1280, 800)
    window.show()
    services.engine.start()
    chat = window.current_page
    assert isinstance(chat, ChatPage)
    qtbot.waitUntil(lambda: chat._choice.plan is not None, timeout=10_000)
    button(window, "Plan and prices of this model ›").click()
    page = window.current_page
    assert isinstance(page, WizardPage)
    choice = page._controller.flow.choice
    assert choice is not None
    assert choice.key == chat._choice.place
    assert step_of(page) is Step.PLAN
