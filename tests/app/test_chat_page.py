"""The chat page with a fake engine: what is stored when, what is said when something breaks, what fits where."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.backends.local import EngineState, LocalEngine
from app.core.chats import AnswerStats, MessageState, StoredMessage
from app.core.shown_message import ShownMessage, state_in_words
from app.item_models.chat_list import ChatListRole
from app.pages.chat import ChatPage
from app.pages.chat.controller import title_of
from app.pages.chat.model_card import plan_summary
from app.pages.services import Services
from app.widgets.composer import Composer
from app.widgets.error_banner import ErrorBanner
from app.widgets.meter_panel import MeterPanel
from app.widgets.meter_strip import MeterStrip
from engine.hardware.machine import Machine
from engine.plan.footprint import Footprint
from engine.plan.plan import make_plan
from engine.protocol import Link, Plan, Tier, Wishes
from tests.app.conftest import MakeEngine, empty_disk, fill_disk

MakePage = Callable[..., ChatPage]


@pytest.fixture
def make_page(services: Services, make_engine: MakeEngine, qtbot: QtBot) -> Iterator[MakePage]:
    """`make_page("crash", "--after", "5")`: the page over a started fake engine."""

    engines: list[LocalEngine] = []

    def make(*mode: str, width: int = 1224) -> ChatPage:
        engine = make_engine(*mode) if mode else services.engine
        page = ChatPage(replace(services, engine=engine))
        qtbot.addWidget(page)
        page.resize(width, 744)
        page.show()
        engine.start()
        engines.append(engine)
        return page

    yield make
    for engine in engines:  # before the store is closed: open answers are stored as interrupted
        engine.stop()


def ready(page: ChatPage, qtbot: QtBot) -> ChatPage:
    qtbot.waitUntil(lambda: page._services.engine.state is EngineState.READY, timeout=10_000)
    return page


def say(page: ChatPage, text: str = "Why is my query slow?\nMore.") -> None:
    composer = page.findChild(Composer)
    assert composer is not None
    composer.submitted.emit(text)


def stored(page: ChatPage) -> list[StoredMessage]:
    store = page._services.chats
    return store.messages(store.chats()[0].id)


def wait_for_answer(page: ChatPage, qtbot: QtBot) -> StoredMessage:
    qtbot.waitUntil(lambda: not page._chat.is_answering, timeout=15_000)
    return stored(page)[-1]


def banner(page: ChatPage) -> ErrorBanner:
    found = page.findChild(ErrorBanner)
    assert found is not None
    return found


def open_title(page: ChatPage) -> str | None:
    return page._chat.chat.title if page._chat.chat is not None else None


def press(page: ChatPage, text: str, qtbot: QtBot) -> None:
    button = next(button for button in page.findChildren(QPushButton) if button.text() == text and button.isVisible())
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


def test_a_question_is_stored_before_the_engine_hears_of_it(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("hang"), qtbot)
    heard: list[list[str]] = []
    generate = page._services.engine.generate

    def spy(*args: object) -> int:
        heard.append([message.content for message in stored(page)])
        return generate(*args)  # type: ignore[arg-type]

    page._services.engine.generate = spy  # type: ignore[method-assign,assignment]
    say(page)
    assert heard == [["Why is my query slow?\nMore.", ""]]


def test_an_answer_is_written_stored_and_counted(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    say(page)
    assert stored(page)[-1].state is MessageState.STREAMING
    answer = wait_for_answer(page, qtbot)
    assert answer.state is MessageState.COMPLETE
    assert answer.content.startswith("The planner cannot use your index")
    assert answer.stats is not None
    assert answer.stats.new_tokens > 50
    assert answer.stats.model == "gpt-oss-20b"
    assert page._services.chats.chats()[0].title == "Why is my query slow?"
    assert page._messages.messages[-1].content == answer.content
    assert page._meter.reading().tokens_per_second is not None


def test_text_reaches_the_disk_while_it_is_written(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "40"), qtbot)
    say(page)
    qtbot.waitUntil(lambda: len(stored(page)[-1].content) > 20, timeout=5000)
    assert stored(page)[-1].state is MessageState.STREAMING


def test_stop_keeps_what_was_written(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "60"), qtbot)
    say(page)
    qtbot.waitUntil(lambda: page._messages.rowCount() == 2 and len(page._messages.last_content) > 20, timeout=5000)
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    answer = wait_for_answer(page, qtbot)
    assert answer.state is MessageState.STOPPED
    assert len(answer.content) > 20


def test_a_dying_engine_leaves_the_chat_and_a_way_on(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("crash", "--after", "20"), qtbot)
    say(page)
    answer = wait_for_answer(page, qtbot)
    assert state_in_words(ShownMessage(answer)) == "interrupted, the engine ended"
    assert answer.content
    qtbot.waitUntil(lambda: banner(page).isVisible())
    assert page._messages.rowCount() == 2
    assert page._choice.name == "gpt-oss-20b"
    press(page, "Restart", qtbot)
    ready(page, qtbot)
    assert not banner(page).isVisible()


def test_what_was_interrupted_is_sent_along(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    store = page._services.chats
    chat = store.create("Old")
    for role, content, state in (
        ("user", "one", MessageState.COMPLETE), ("assistant", "half", MessageState.INTERRUPTED),
        ("user", "two", MessageState.COMPLETE), ("assistant", "never", MessageState.FAILED),
        ("assistant", "", MessageState.STOPPED),
    ):  # fmt: skip
        store.add_message(chat.id, role, content, state)
    page._chat.open(chat)
    sent: list[tuple[str, ...]] = []
    page._services.engine.generate = lambda messages, *_: sent.append(tuple(m.content for m in messages)) or 99  # type: ignore
    say(page, "three")
    assert sent == [("one", "half", "two\n\nthree")]


def test_a_chat_goes_on_after_an_answer_without_a_word(make_page: MakePage, qtbot: QtBot) -> None:
    """Stopped while the prompt was read, before the first word; many templates refuse two questions in a row."""
    page = ready(make_page("strict", "--rate", "200"), qtbot)
    say(page, "word " * 3000)
    qtbot.waitUntil(lambda: page._meter.reading().prompt is not None, timeout=5000)
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    stopped = wait_for_answer(page, qtbot)
    assert (stopped.state, stopped.content) == (MessageState.STOPPED, "")
    say(page, "Shorter?")
    assert wait_for_answer(page, qtbot).state is MessageState.COMPLETE
    say(page, "Thanks.")
    assert wait_for_answer(page, qtbot).state is MessageState.COMPLETE


def test_a_failed_answer_shows_what_happened_and_what_helps(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("fail-generate"), qtbot)
    say(page)
    wait_for_answer(page, qtbot)
    shown = [label.text() for label in page._view.findChildren(QLabel) if label.isVisible()]
    assert "The chat is longer than the context. Begin a new chat or allow a larger context." in shown


def test_the_prompt_is_shown_while_it_is_read(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    say(page, "word " * 1500)
    qtbot.waitUntil(lambda: (prompt := page._meter.reading().prompt) is not None and prompt.read_tokens >= 1024, timeout=5000)
    reading = page._meter.reading()
    assert reading.prompt is not None
    assert 0.5 < reading.prompt.share < 1
    assert reading.prompt.tokens_per_second == pytest.approx(1900, rel=0.1)  # the fake reads 512 tokens in 276 ms
    assert reading.prompt.bytes > 0
    assert all(link.gbps is not None for link in reading.links)


def test_a_full_disk_keeps_the_message_in_the_field(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    store, composer = page._services.chats, page._composer
    fill_disk(store)
    text = "A long message. " * 6000
    composer.set_text(text)
    qtbot.keyClick(composer.field, Qt.Key.Key_Return)
    assert banner(page).sentence == "The message could not be saved: the disk is full. It is still in the field."
    assert banner(page).isVisible()
    assert composer.text == text
    assert page._chat.chat is None
    assert not page._chat.is_answering
    assert page._messages.rowCount() == 0
    assert page._services.engine.state is EngineState.READY
    assert store.chats() == []
    empty_disk(store)
    qtbot.keyClick(composer.field, Qt.Key.Key_Return)
    assert composer.text == ""
    assert stored(page)[0].content == text.strip()


def test_a_disk_that_fills_up_does_not_end_the_answer(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "2000", "--tokens", "9000"), qtbot)
    page._services.settings.max_tokens = 9000
    say(page)
    fill_disk(page._services.chats)
    wait_for_answer(page, qtbot)
    assert banner(page).sentence == "The answer could not be saved: the disk is full."
    assert page._messages.messages[-1].state is MessageState.COMPLETE
    assert len(page._messages.last_content) > 9000
    assert stored(page)[-1].state is MessageState.STREAMING
    page._new_chat()
    page._open(page._services.chats.chats()[0])
    assert page._messages.messages[-1].state is MessageState.COMPLETE, "what is not on disk is not forgotten"
    empty_disk(page._services.chats)
    qtbot.waitUntil(lambda: stored(page)[-1].state is MessageState.COMPLETE, timeout=2000)
    assert stored(page)[-1].content == page._messages.last_content
    assert not banner(page).isVisible()
    assert not page._chat._store_timer.isActive()


def test_an_ended_answer_is_stored_at_the_latest_when_the_window_closes(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "2000", "--tokens", "9000"), qtbot)
    page._services.settings.max_tokens = 9000
    say(page)
    fill_disk(page._services.chats)
    wait_for_answer(page, qtbot)
    empty_disk(page._services.chats)
    page._services.engine.stop()
    assert stored(page)[-1].state is MessageState.COMPLETE


def choose(page: ChatPage, text: str) -> None:
    """From the menu of models, as a click does."""
    entry(page, text).trigger()


def entry(page: ChatPage, text: str) -> QAction:
    return next(action for action in page._header._menu.actions() if action.text().startswith(text))


def card_button(page: ChatPage) -> QPushButton:
    (button,) = page._list.card.findChildren(QPushButton)
    return button


@pytest.mark.parametrize("way", ["gpt-oss-20b", "Reload gpt-oss-20b", "card"])
def test_a_dead_engine_comes_back_by_menu_and_card(make_page: MakePage, qtbot: QtBot, way: str) -> None:
    page = ready(make_page("crash", "--after", "20"), qtbot)
    say(page)
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    assert card_button(page).text() == "Restart"
    if way == "card":
        qtbot.mouseClick(card_button(page), Qt.MouseButton.LeftButton)
    else:
        choose(page, way)
    ready(page, qtbot)
    assert not banner(page).isVisible()
    assert not card_button(page).isVisible()
    assert page._choice.name == "gpt-oss-20b"


def test_the_loaded_model_is_not_loaded_again_for_nothing(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    pid = page._services.engine.pid
    choose(page, "gpt-oss-20b")
    assert entry(page, "gpt-oss-20b").isChecked()
    assert page._services.engine.state is EngineState.READY
    assert page._services.engine.pid == pid
    choose(page, "Reload gpt-oss-20b")
    qtbot.waitUntil(lambda: page._choice.plan is not None and page._services.engine.pid != pid, timeout=10_000)


@pytest.mark.parametrize("way", ["gpt-oss-20b", "card"])
def test_changed_settings_can_be_put_to_use(make_page: MakePage, qtbot: QtBot, way: str) -> None:
    page = ready(make_page(), qtbot)
    page._services.settings.temperature = 0.1
    assert not card_button(page).isVisible()
    page._services.settings.context = 4096
    assert card_button(page).text() == "Reload"
    assert card_button(page).isVisible()
    if way == "card":
        qtbot.mouseClick(card_button(page), Qt.MouseButton.LeftButton)
    else:
        choose(page, way)
    qtbot.waitUntil(lambda: page._choice.plan is not None and page._choice.plan.context == 4096, timeout=10_000)
    assert not card_button(page).isVisible()
    page._services.settings.context = 0
    assert card_button(page).isVisible()
    page._services.settings.context = 4096
    assert not card_button(page).isVisible()


def test_another_limit_on_graphics_memory_is_put_to_use_by_a_reload(
    make_page: MakePage, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ready(make_page(), qtbot)
    engine, asked = page._services.engine, list[Wishes]()
    load = engine.load

    def noted(name: str, wishes: Wishes) -> int:
        asked.append(wishes)
        return load(name, wishes)

    monkeypatch.setattr(engine, "load", noted)
    page._services.settings.vram_limit = "0"
    assert card_button(page).text() == "Reload"
    qtbot.mouseClick(card_button(page), Qt.MouseButton.LeftButton)
    ready(page, qtbot)
    assert asked == [Wishes(vram_limit="0")]
    assert not card_button(page).isVisible()
    page._services.settings.vram_limit = ""
    assert card_button(page).isVisible()


def test_another_choice_while_one_is_being_loaded(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("slow")
    qtbot.waitUntil(lambda: page._choice.progress is not None, timeout=10_000)
    choose(page, "qwen3-30b-a3b")
    ready(page, qtbot)
    assert page._choice.name == "qwen3-30b-a3b"
    assert page._services.settings.model == "qwen3-30b-a3b"
    assert page._services.settings.loading_model == ""
    assert not banner(page).isVisible()


def test_a_notice_is_shown_quietly_until_it_is_closed(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--notice", "The <b>fast</b> kernels are not built."), qtbot)
    qtbot.waitUntil(page._notice.isVisible)
    assert page._notice.sentence == "The <b>fast</b> kernels are not built."
    assert not banner(page).isVisible()
    image = page._notice.grab().toImage()
    pixels = {image.pixelColor(x, y).name() for x in range(image.width()) for y in range(0, image.height(), 2)}
    assert page._services.theme.palette.bad not in pixels
    page._notice.dismiss()
    say(page)
    wait_for_answer(page, qtbot)
    assert not page._notice.isVisible()
    choose(page, "Reload")
    qtbot.waitUntil(page._notice.isVisible, timeout=10_000)


def test_no_notice_no_banner(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    assert not page._notice.isVisible()


def test_every_label_shows_what_it_is_given_letter_by_letter(make_page: MakePage, qtbot: QtBot) -> None:
    """Names of models, files and languages, and the engine's sentences, may look like HTML."""
    page = ready(make_page("normal", "--rate", "400"), qtbot)
    say(page, "<h1>q</h1>")
    wait_for_answer(page, qtbot)
    labels = [label for label in page.findChildren(QLabel) if label.pixmap().isNull()]
    assert len(labels) > 10
    assert [label.text() for label in labels if label.textFormat() is not Qt.TextFormat.PlainText] == []
    assert page._header._title.toolTip() == "<qt>&lt;h1&gt;q&lt;/h1&gt;</qt>"


PLAN = Plan(
    model_name="m", architecture="a", weight_format="bf16", num_layers=2, num_experts=8, top_k=2, expert_bytes=10**8,
    slots_per_layer=(8, 8), dense_bytes=1, expert_ram_bytes=17 * 10**8, kv_bytes=1, workspace_bytes=1, context=4096,
    model_bytes=1, sentence="s",
)  # fmt: skip


def test_the_card_counts_experts_not_padded_slots() -> None:
    assert plan_summary(PLAN) == "BF16 · all 1.60 GB of experts in RAM"
    most = replace(PLAN, slots_per_layer=(8, 7), expert_ram_bytes=16 * 10**8)  # as large as all experts, with the padding
    assert plan_summary(most) == "BF16 · 1.50 GB of 1.60 GB of experts in RAM"


def test_with_a_graphics_card_it_counts_those_in_vram() -> None:
    """With all of them there, RAM has no more than they pass through."""
    tier = Tier(Link.VRAM, "RTX 4070", 10**10, num_experts=16)
    assert plan_summary(replace(PLAN, slots_per_layer=(2, 2), tiers=(tier,))) == "BF16 · all 1.60 GB of experts in VRAM"
    some = replace(PLAN, slots_per_layer=(4, 4), tiers=(replace(tier, num_experts=6),))
    assert plan_summary(some) == "BF16 · of 1.60 GB of experts 600 MB in VRAM, 800 MB in RAM"


def test_the_card_says_what_the_sentence_says() -> None:
    footprint = Footprint(
        name="demo", architecture="a", weight_format="f32", model_bytes=1, dense_bytes=1, dense_read_bytes=1, expert_bytes=1_327_104,
        slot_bytes=1_329_152, num_moe_layers=30, num_experts=32, top_k=2, num_layers=30, num_kv_heads=1, head_dim=64,
        hidden_size=64, expert_size=64, vocab_size=64, max_context=2048,
    )  # fmt: skip
    for share in range(10, 100):
        plan = make_plan(Machine(10**11, 10**11, False), footprint, Wishes(expert_ram=f"{share}%"))
        amounts = re.search(r"\((.*? of .*?)\)", plan.sentence)
        assert amounts
        assert amounts[1] in plan_summary(plan)


def test_a_failed_request_says_why(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("fail-load")
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    assert "needs 14.2 GB of memory and 9.1 GB is free. Close other programs." in banner(page).sentence
    assert page._services.settings.loading_model == ""
    say(page)
    answer = wait_for_answer(page, qtbot)
    assert answer.state is MessageState.FAILED
    assert answer.stats is not None
    assert answer.stats.stop_reason == "No model is loaded."


def test_regenerate_takes_the_place_of_the_answer(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    say(page)
    first = wait_for_answer(page, qtbot)
    page._view.regenerate_requested.emit(first.id)
    assert [message.role for message in stored(page)] == ["user", "assistant"]
    second = wait_for_answer(page, qtbot)
    assert second.id != first.id
    assert second.state is MessageState.COMPLETE
    assert page._messages.rowCount() == 2


def test_another_chat_can_be_opened_while_one_is_answered(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "60"), qtbot)
    say(page)
    answered = page._chat.chat
    assert answered is not None
    qtbot.waitUntil(lambda: len(page._messages.last_content) > 20, timeout=5000)
    page._new_chat()
    assert page._messages.rowCount() == 0
    assert page._composer._reason == "“Why is my query slow?” is being answered"
    index = page._chats.index_of(answered.id)
    assert index.data(ChatListRole.IS_WRITING)
    page._open(answered)
    assert len(page._messages.messages[-1].content) > 20
    answer = wait_for_answer(page, qtbot)
    assert answer.state is MessageState.COMPLETE
    assert page._messages.messages[-1].content == answer.content
    assert not page._chats.index_of(answered.id).data(ChatListRole.IS_WRITING)


@pytest.mark.parametrize("way", ["button", "Esc"])
def test_an_answer_can_be_stopped_from_another_chat(make_page: MakePage, qtbot: QtBot, way: str) -> None:
    page = ready(make_page("normal", "--rate", "30"), qtbot)
    say(page)
    page._new_chat()
    if way == "button":
        press(page, "Stop", qtbot)
    else:
        qtbot.keyClick(page._composer.field, Qt.Key.Key_Escape)
    assert wait_for_answer(page, qtbot).state is MessageState.STOPPED
    assert page._composer._reason == ""


def test_a_draft_stays_with_its_chat(make_page: MakePage, services: Services, qtbot: QtBot) -> None:
    for title in ("Tea", "Coffee"):
        services.chats.add_message(services.chats.create(title).id, "user", title)
    page = ready(make_page(), qtbot)
    coffee, tea = sorted(services.chats.chats(), key=lambda chat: chat.title)
    page._composer.set_text("for a new one")
    page._open(tea)
    assert page._composer.text == ""
    page._composer.set_text("about tea")
    page._open(coffee)
    assert page._composer.text == ""
    say(page, "sent")
    wait_for_answer(page, qtbot)
    page._open(tea)
    assert page._composer.text == "about tea"
    page._new_chat()
    assert page._composer.text == "for a new one"
    qtbot.keyClick(page._composer.field, Qt.Key.Key_Return)
    assert page._composer.text == ""
    wait_for_answer(page, qtbot)
    page._new_chat()
    assert page._composer.text == "", "what was sent is no draft"
    page._open(tea)
    assert page._composer.text == "about tea"


def test_only_a_dead_engine_is_said_to_have_ended() -> None:
    def words(reason: str | None) -> str:
        stats = None if reason is None else AnswerStats(3, 1.0, 1.0, reason, "m")
        return state_in_words(ShownMessage(StoredMessage(1, 1, "assistant", "half", MessageState.INTERRUPTED, stats, 0.0)))

    assert words("engine.died") == "interrupted, the engine ended"
    assert words(None) == words("") == "interrupted"


def test_an_answer_that_the_closing_window_cut_is_just_interrupted(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("normal", "--rate", "30"), qtbot)
    say(page)
    qtbot.waitUntil(lambda: len(page._messages.last_content) > 20, timeout=5000)
    page._services.engine.stop()
    assert state_in_words(ShownMessage(stored(page)[-1])) == "interrupted"


def test_a_model_that_ended_the_last_session_is_not_loaded_by_itself(
    make_page: MakePage, services: Services, qtbot: QtBot
) -> None:
    services.settings.loading_model = "qwen3-30b-a3b"
    page = make_page()
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    assert banner(page).sentence.startswith("The last session ended while loading qwen3-30b-a3b")
    assert services.engine.state is EngineState.IDLE
    press(page, "Load anyway", qtbot)
    assert services.settings.loading_model == "qwen3-30b-a3b"
    ready(page, qtbot)
    assert services.settings.loading_model == ""
    assert services.settings.model == "qwen3-30b-a3b"


def test_a_load_that_kills_the_engine_is_remembered(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("crash-load")
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    assert page._services.settings.loading_model == "gpt-oss-20b"
    assert page._choice.name == "gpt-oss-20b"


def test_a_failed_load_is_not_repeated_by_itself(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("fail-load")
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    with qtbot.waitSignal(page._services.engine.models):
        page._header.models_wanted.emit()
    assert page._choice.loading == ""


def test_an_engine_that_does_not_stop_can_be_restarted(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page("hang"), qtbot)
    say(page)
    qtbot.waitUntil(lambda: page._meter.reading().prompt is not None, timeout=5000)
    page._chat._patience.setInterval(10)
    qtbot.keyClick(page, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: banner(page).isVisible())
    press(page, "Restart", qtbot)
    assert wait_for_answer(page, qtbot).state is MessageState.INTERRUPTED
    ready(page, qtbot)


def test_shortcuts(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    page.activateWindow()
    page.activate()
    control = Qt.KeyboardModifier.ControlModifier
    focus = QApplication.focusWidget()
    assert focus is not None
    qtbot.keyClick(focus, Qt.Key.Key_M, control)
    assert not page._services.settings.meter_visible
    qtbot.keyClick(focus, Qt.Key.Key_K, control)
    assert QApplication.focusWidget() is page._list._search
    say(page)
    wait_for_answer(page, qtbot)
    qtbot.keyClick(page._list._search, Qt.Key.Key_N, control)
    assert page._chat.chat is None
    assert QApplication.focusWidget() is focus


@pytest.mark.parametrize("way", ["Restart", "card", "send", "Try again"])
def test_the_keyboard_comes_back_to_the_composer(make_page: MakePage, qtbot: QtBot, way: str) -> None:
    page = make_page("fail-load") if way == "Try again" else make_page("crash", "--after", "20")
    if way == "Try again":
        qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    else:
        ready(page, qtbot)
    if way in ("Restart", "card"):
        say(page)
        qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    page._list._search.setFocus()
    if way == "card":
        card_button(page).setFocus()
        qtbot.mouseClick(card_button(page), Qt.MouseButton.LeftButton)
    elif way == "send":
        say(page)
    else:
        press(page, way, qtbot)
    assert page._composer.field.hasFocus()


def test_search_by_keyboard(make_page: MakePage, services: Services, qtbot: QtBot) -> None:
    for title in ("Tea", "Coffee"):
        services.chats.add_message(services.chats.create(title).id, "user", title)
    page = ready(make_page(), qtbot)
    page._search()
    field = page._list._search
    qtbot.keyClicks(field, "nothing like it")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert page._chats.index(0).data() == "Nothing found"
    assert open_title(page) is None
    qtbot.keyClick(field, Qt.Key.Key_Escape)
    assert field.text() == ""
    qtbot.keyClicks(field, "tea")
    qtbot.keyClick(field, Qt.Key.Key_Return)
    assert open_title(page) == "Tea"
    assert page._composer.field.hasFocus()


def test_a_model_is_opened_from_a_folder(make_page: MakePage, qtbot: QtBot, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-moe"
    folder.mkdir()
    page = ready(make_page(), qtbot)
    page._ask_folder = lambda parent: ""
    last = page._header._menu.actions()[-1]
    assert last.text() == "Open a model folder…"
    last.trigger()
    assert page._choice.name == "gpt-oss-20b"
    page._ask_folder = lambda parent: str(folder)
    last.trigger()
    assert page._choice.title == "tiny-moe"
    qtbot.waitUntil(lambda: page._choice.plan is not None, timeout=10_000)
    assert page._choice.plan is not None
    assert page._choice.plan.model_name == "tiny-moe"
    assert page._header._chip.text().startswith("tiny-moe")
    assert page._services.settings.model == str(folder), "and again at the next start"
    again = make_page()
    qtbot.waitUntil(lambda: again._choice.plan is not None, timeout=10_000)
    assert again._choice.name == str(folder)


def test_a_folder_of_the_list_is_that_model(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    page._choice.open_folder("/models/qwen3-30b-a3b")
    assert page._choice.name == "qwen3-30b-a3b"


@pytest.mark.parametrize("code", ["plan.context", "plan.too_much", "plan.below_floor", "plan.vram_limit"])
def test_a_load_that_a_setting_spoilt_leads_to_the_settings(make_page: MakePage, qtbot: QtBot, code: str) -> None:
    page = make_page("fail-load", "--code", code)
    qtbot.waitUntil(lambda: banner(page).isVisible(), timeout=10_000)
    with qtbot.waitSignal(page.page_wanted) as wanted:
        press(page, "Open settings", qtbot)
    assert wanted.args == ["settings"]


def test_nothing_is_said_to_be_missing_before_the_models_are_known(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("hang-start")

    def words() -> list[str]:
        return [label.text() for label in page._placeholder.findChildren(QLabel) if label.isVisible()]

    assert words() == ["Looking for models…"]
    qtbot.waitUntil(lambda: page._services.engine.state is EngineState.STARTING)
    assert words() == ["Looking for models…"]
    assert not page._list.card.isVisible()
    assert not page._header._chip.isVisible()
    assert page._composer._reason == "Looking for models…"
    seen: set[str] = set()
    other = make_page()
    other._choice.changed.connect(lambda: seen.update(label.text() for label in other._placeholder.findChildren(QLabel)))
    qtbot.waitUntil(lambda: other._choice.loading != "", timeout=10_000)
    assert other._list.card.isVisible()
    assert other._header._chip.isVisible()
    assert not {text for text in seen if text.startswith(("No model", "The engine", "Choose"))}


def test_no_models_says_how_to_get_one(make_page: MakePage, qtbot: QtBot) -> None:
    page = make_page("no-models")
    qtbot.waitUntil(lambda: page._choice.models == (), timeout=10_000)
    texts = [label.text() for label in page._placeholder.findChildren(QLabel) if label.isVisible()]
    assert "stoker demo" in texts
    assert "Models are kept in /models" in texts


def test_models_that_cannot_be_loaded_say_why(make_page: MakePage, qtbot: QtBot) -> None:
    page = ready(make_page(), qtbot)
    actions = {action.text(): action.isEnabled() for action in page._header._menu.actions()}
    broken = next(text for text in actions if text.startswith("half-downloaded"))
    assert "model-00002-of-00003.safetensors is missing" in broken
    assert not actions[broken]


def test_delete_can_be_undone(make_page: MakePage, services: Services, qtbot: QtBot) -> None:
    chat = services.chats.create("Letter")
    services.chats.add_message(chat.id, "user", "Dear landlord")
    page = ready(make_page(), qtbot)
    page._open(services.chats.chats()[0])
    qtbot.keyClick(page._list._list, Qt.Key.Key_Delete)
    assert services.chats.chats() == []
    assert open_title(page) is None
    assert page._list._undo_timer.interval() == 15_000
    press(page, "Undo", qtbot)
    assert [chat.title for chat in services.chats.chats()] == ["Letter"]
    assert open_title(page) == "Letter"
    assert [message.content for message in page._messages.messages] == ["Dear landlord"]
    assert page._composer.field.hasFocus()


def test_f2_renames(make_page: MakePage, services: Services, qtbot: QtBot) -> None:
    services.chats.add_message(services.chats.create("Letter").id, "user", "Dear landlord")
    page = ready(make_page(), qtbot)
    page._open(services.chats.chats()[0])
    page._rename()
    edit = QApplication.focusWidget()
    assert edit is not None
    edit.selectAll()  # type: ignore[attr-defined]
    qtbot.keyClicks(edit, "Rent")
    qtbot.keyClick(edit, Qt.Key.Key_Return)
    assert services.chats.chats()[0].title == "Rent"
    assert page._header._title_text == "Rent"
    assert page._composer.field.hasFocus()


@pytest.mark.parametrize(
    ("width", "has_list", "has_panel", "has_strip"),
    [(1224, True, True, False), (960, True, True, False), (900, False, True, False), (704, False, False, True)],
)
def test_what_fits(make_page: MakePage, qtbot: QtBot, width: int, has_list: bool, has_panel: bool, has_strip: bool) -> None:
    page = make_page(width=width)
    panel, strip = page.findChild(MeterPanel), page.findChild(MeterStrip)
    assert panel is not None
    assert strip is not None
    assert page._list.isVisible() is has_list
    assert panel.isVisible() is has_panel
    assert strip.isVisible() is has_strip
    page._set_meter_visible(False)
    assert not panel.isVisible()
    assert not strip.isVisible()
    page._search()
    assert page._list.isVisible()


def test_title_is_the_first_line_cut_at_a_word() -> None:
    assert title_of("\n  Hello there \nmore") == "Hello there"
    assert title_of("word " * 40) == "word " * 11 + "word…"
    assert title_of("  ") == "New chat"
