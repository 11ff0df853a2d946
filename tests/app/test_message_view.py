"""The conversation: lazy building, sticking to the end, states in words, and that a model's text loads and opens nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication, QTextDocument
from PySide6.QtWidgets import QApplication, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

from app.core.chats import AnswerStats, MessageState, StoredMessage
from app.core.markdown import Block, parse_with_lines
from app.item_models.messages import MessagesModel
from app.widgets.code_block import CodeBlock
from app.widgets.message_view import MessageView
from app.widgets.message_widget import AnswerMessage, QuietButton, UserMessage
from app.widgets.rich_text import RichText
from app.widgets.theme import Theme
from engine.protocol import SpanKind, Text

THOUGHT = SpanKind.THOUGHT
STATS = AnswerStats(167, 18.43, 0.93, "end", "tiny-moe")
CODE = "```python\n" + "\n".join(f"value_{number} = {number}" for number in range(2500)) + "\n```\n"


def message(number: int, role: str, content: str, state: MessageState = MessageState.COMPLETE) -> StoredMessage:
    return StoredMessage(number, 1, role, content, state, STATS if role == "assistant" else None, 0.0)


def long_chat(count: int = 300) -> list[StoredMessage]:
    return [
        message(n, "user", f"Question {n}") if n % 2 == 0
        else message(n, "assistant", f"Answer {n}.\n\n{CODE if n % 30 == 1 else 'Some *more*.'}")
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def model(qapp: QApplication) -> MessagesModel:
    return MessagesModel()


@pytest.fixture
def view(model: MessagesModel, qtbot: QtBot) -> MessageView:
    widget = MessageView(model, Theme("light"))
    qtbot.addWidget(widget)
    widget.resize(700, 500)
    widget.show()
    return widget


def show(view: MessageView, model: MessagesModel, messages: Sequence[StoredMessage]) -> None:
    model.reset(messages)
    QApplication.processEvents()


def answers(view: MessageView) -> list[AnswerMessage]:
    return [child for child in view.findChildren(AnswerMessage) if child.isVisible()]


def words(widget: AnswerMessage) -> str:
    return " ".join(label.text() for label in widget.findChildren(QLabel) if label.isVisible())


def distance_to_end(view: MessageView) -> int:
    bar = view.verticalScrollBar()
    return bar.maximum() - bar.value()


def test_a_long_chat_builds_only_what_is_near(view: MessageView, model: MessagesModel) -> None:
    show(view, model, long_chat())
    assert distance_to_end(view) == 0
    assert 0 < view.num_built < 30
    for value in range(view.verticalScrollBar().maximum(), 0, -2000):
        view.verticalScrollBar().setValue(value)
        assert view.num_built < 60
    view.verticalScrollBar().setValue(0)
    top = min((child for child in view.findChildren(UserMessage) if child.isVisible()), key=lambda child: child.y())
    assert top.findChild(RichText).toPlainText() == "Question 0"  # type: ignore[union-attr]


def test_what_is_looked_at_stays_where_it_is(view: MessageView, model: MessagesModel) -> None:
    show(view, model, long_chat())
    view.verticalScrollBar().setValue(view.verticalScrollBar().maximum() // 2)
    seen = {id(child): child.y() for child in view.findChildren(UserMessage) if child.isVisible() and 0 < child.y() < 500}
    for _ in range(20):
        view._build_ahead()
    assert seen
    after = {id(child): child.y() for child in view.findChildren(UserMessage) if child.isVisible()}
    assert all(after[key] == y for key, y in seen.items())


def stream(model: MessagesModel, text: str, kind: SpanKind = SpanKind.ANSWER, span: int | None = None) -> None:
    model.append_text(Text(1, text, 1, 1, kind, list(SpanKind).index(kind) if span is None else span), STATS)
    model.flush()


def test_sticks_to_the_end_only_while_the_person_is_there(view: MessageView, model: MessagesModel) -> None:
    show(view, model, long_chat(40))
    model.add(message(100, "assistant", "", MessageState.STREAMING))
    for _ in range(30):
        stream(model, "A line of text.\n\n")
    assert distance_to_end(view) == 0
    view.verticalScrollBar().setValue(view.verticalScrollBar().maximum() - 300)
    held = view.verticalScrollBar().value()
    stream(model, "More.\n\n" * 10)
    assert view.verticalScrollBar().value() == held
    view.scroll_to_end()
    stream(model, "More.\n\n" * 10)
    assert distance_to_end(view) == 0


def test_a_growing_answer_keeps_its_finished_widgets(view: MessageView, model: MessagesModel) -> None:
    show(view, model, [message(1, "user", "q"), message(2, "assistant", "", MessageState.STREAMING)])
    stream(model, "First.\n\n```py\nx = 1\n```\n\nSec")
    (answer,) = answers(view)
    code = answer.findChild(CodeBlock)
    stream(model, "ond **bo")
    stream(model, "ld** end\n\nThird.")
    assert answer.findChild(CodeBlock) is code
    texts = [text.toPlainText() for text in answer.findChildren(RichText) if text.isVisible()]
    assert texts == ["First.", "Second bold end\nThird."]


def test_streaming_looks_like_the_whole_in_the_end(view: MessageView, model: MessagesModel) -> None:
    text = "# Head\n\n- a `b`\n- c\n\n1. x\n\n   y\n\n> q\n\nEnd with *style*."
    show(view, model, [message(1, "assistant", "", MessageState.STREAMING)])
    for start in range(0, len(text), 3):
        stream(model, text[start : start + 3])
    model.finish(MessageState.COMPLETE, STATS)
    (streamed,) = answers(view)
    grown = [piece.toHtml() for piece in streamed.findChildren(RichText) if piece.isVisible()]
    show(view, model, [message(2, "assistant", text)])
    (whole,) = answers(view)
    assert [piece.toHtml() for piece in whole.findChildren(RichText) if piece.isVisible()] == grown


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (MessageState.STREAMING, "writing…"), (MessageState.COMPLETE, "finished"), (MessageState.STOPPED, "stopped by you"),
        (MessageState.INTERRUPTED, "interrupted"), (MessageState.FAILED, "no answer"),
    ],
)  # fmt: skip
def test_the_state_is_told_in_words(view: MessageView, model: MessagesModel, state: MessageState, expected: str) -> None:
    show(view, model, [message(1, "assistant", "Hello.", state)])
    (answer,) = answers(view)
    assert expected in words(answer)
    assert "18.4 tok/s" in words(answer)
    assert "167 tokens" in words(answer)


def test_a_failure_shows_its_reason(view: MessageView, model: MessagesModel) -> None:
    failed = replace(
        message(1, "assistant", "", MessageState.FAILED),
        stats=AnswerStats(0, 0, 0, "The context is full. Start a new chat.", "m"),
    )
    show(view, model, [failed])
    assert "The context is full. Start a new chat." in words(answers(view)[0])


def test_thought_is_folded_and_opens(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    show(view, model, [replace(message(1, "assistant", "The answer."), thought="First this.")])
    (answer,) = answers(view)
    texts = [text.toPlainText() for text in answer.findChildren(RichText) if text.isVisible()]
    assert texts == ["The answer."]
    header = next(button for button in answer.findChildren(QPushButton) if "Thought" in button.text())
    height = answer.height()
    qtbot.mouseClick(header, Qt.MouseButton.LeftButton)
    assert answer.height() > height
    assert "First this." in [text.toPlainText() for text in answer.findChildren(RichText) if text.isVisible()]


def test_an_open_thought_grows_at_its_end_only(
    view: MessageView, model: MessagesModel, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(view, model, [message(1, "assistant", "", MessageState.STREAMING)])
    stream(model, "\n\n".join(f"{number}. " + "word " * 20 for number in range(300)), THOUGHT)
    (answer,) = answers(view)
    header = next(button for button in answer.findChildren(QPushButton) if "Thinking" in button.text())
    qtbot.mouseClick(header, Qt.MouseButton.LeftButton)
    parsed: list[int] = []
    written: list[int] = []

    def counted(text: str) -> list[tuple[Block, int]]:
        parsed.append(len(text))
        return parse_with_lines(text)

    monkeypatch.setattr("app.core.markdown_stream.parse_with_lines", counted)
    before = visible_texts(answer)
    for text in before:
        text.document().contentsChange.connect(lambda _, removed, added: written.append(removed + added))
    for _ in range(20):
        stream(model, "and more ", THOUGHT)
    after = visible_texts(answer)
    assert after[: len(before)] == before
    assert after[-1].toPlainText().endswith("and more " * 19 + "and more")
    assert max(parsed) < 2000, "parsed again from its beginning"
    assert max(written) < 2000, "laid out again from its beginning"
    stream(model, "the end.", THOUGHT)
    stream(model, "So.")
    model.finish(MessageState.COMPLETE, STATS)
    assert [text.toPlainText()[-8:] for text in visible_texts(answer)][-1] == "So."
    assert any(text.toPlainText().endswith("and more the end.") for text in visible_texts(answer))


def visible_texts(answer: AnswerMessage) -> list[RichText]:
    return [text for text in answer.findChildren(RichText) if text.isVisible()]


def test_a_folded_thought_is_not_laid_out_and_catches_up(view: MessageView, model: MessagesModel) -> None:
    show(view, model, [message(1, "assistant", "", MessageState.STREAMING)])
    stream(model, "First.", THOUGHT)
    (answer,) = answers(view)
    assert answer.findChildren(RichText) == []
    header = next(button for button in answer.findChildren(QPushButton) if "Thinking" in button.text())
    header.click()
    header.click()
    stream(model, "\n\nSecond **bo", THOUGHT)
    (text,) = answer.findChildren(RichText)
    assert text.toPlainText() == "First."
    stream(model, "ld**.", THOUGHT)
    header.click()
    assert text.toPlainText() == "First.\nSecond bold."


def test_a_language_that_looks_like_html_is_text(view: MessageView, model: MessagesModel) -> None:
    show(view, model, [message(1, "assistant", "```<h1>x\ncode\n```")])
    (answer,) = answers(view)
    (label,) = [label for label in answer.findChildren(QLabel) if "x" in label.text()]
    assert label.text() == "<h1>x"
    assert label.textFormat() is Qt.TextFormat.PlainText


def test_thought_seconds_are_measured_while_streaming(qapp: QApplication) -> None:
    now = 10.0
    model = MessagesModel(clock=lambda: now)
    model.reset([message(1, "assistant", "", MessageState.STREAMING)])
    stream(model, "a", THOUGHT)
    now = 16.0
    stream(model, "b", THOUGHT)
    stream(model, "So")
    now = 30.0
    stream(model, " it is")
    shown = model.data(model.index(0), Qt.ItemDataRole.UserRole)
    assert shown.thought_seconds == 6.0  # type: ignore[attr-defined]


def test_spans_of_one_kind_are_paragraphs_and_calls_stand_apart(qapp: QApplication) -> None:
    model = MessagesModel()
    model.reset([message(1, "assistant", "", MessageState.STREAMING)])
    answer, call = SpanKind.ANSWER, SpanKind.CALL
    spans = [(THOUGHT, "a"), (THOUGHT, "b"), (answer, "c"), (call, "d\n{}"), (call, "e\n{}"), (answer, "f")]
    for number, (kind, text) in enumerate(spans):
        stream(model, text, kind, number)
        stream(model, "+" if kind is not call else "", kind, number)
    said = model.messages[-1]
    assert (said.thought, said.content, said.calls) == ("a+\n\nb+", "c+\n\nf+", ("d\n{}", "e\n{}"))


def test_a_call_is_folded_and_shows_its_arguments_as_they_are(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    call = 'write_file\n{\n  "text": "```\\n<b>x</b>"\n}'
    show(view, model, [replace(message(1, "assistant", "I write."), calls=(call, "\nunknown"))])
    (answer,) = answers(view)
    first, second = [button for button in answer.findChildren(QPushButton) if "Wants to call" in button.text()]
    assert first.text().endswith("Wants to call write_file")
    assert second.text().endswith("Wants to call a tool")
    height = answer.height()
    qtbot.mouseClick(first, Qt.MouseButton.LeftButton)
    assert answer.height() > height
    (code,) = [block for block in answer.findChildren(CodeBlock) if block.isVisible()]
    assert '"```\\n<b>x</b>"' in code._code.text


def test_copy_gives_the_source(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    show(view, model, [message(1, "assistant", "Do:\n\n```sh\nls  -l\n```\n\n**Done**.")])
    (answer,) = answers(view)
    buttons = {button.accessibleName(): button for button in answer.findChildren(QPushButton)}
    qtbot.mouseClick(buttons["Copy this code"], Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "ls  -l"
    qtbot.mouseClick(buttons["Copy this answer"], Qt.MouseButton.LeftButton)
    assert QGuiApplication.clipboard().text() == "Do:\n\n```sh\nls  -l\n```\n\n**Done**."


def test_only_the_last_answer_can_be_made_again(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    show(view, model, [message(n, "user" if n % 2 else "assistant", f"text {n}") for n in range(1, 5)])
    buttons = [b for b in view.findChildren(QuietButton) if b.text() == "Regenerate" and b.isVisible()]
    assert len(buttons) == 1
    with qtbot.waitSignal(view.regenerate_requested) as asked:
        qtbot.mouseClick(buttons[0], Qt.MouseButton.LeftButton)
    assert asked.args == [4]
    view.set_can_regenerate(False)
    assert not buttons[0].isVisible()


def test_actions_are_reachable_by_tab_in_order(view: MessageView, model: MessagesModel) -> None:
    show(view, model, [message(n, "user" if n % 2 else "assistant", f"text {n}") for n in range(1, 5)])
    view._build_ahead()
    order = []
    widget: QWidget | None = view.nextInFocusChain()
    while widget is not None and widget is not view:
        if isinstance(widget, QuietButton) and widget.isVisible():
            order.append(widget.mapTo(view, widget.rect().topLeft()).y())
        widget = widget.nextInFocusChain()
    assert len(order) == 5
    assert order == sorted(order)


def test_long_code_opens_folded(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    show(view, model, [message(1, "assistant", CODE)])
    (answer,) = answers(view)
    folded = answer.height()
    button = next(button for button in answer.findChildren(QPushButton) if button.text().startswith("Show all"))
    assert "2\u202f500 lines" in button.text()
    button.click()
    assert answer.height() > 10 * folded


def test_code_gets_its_colours_between_events(view: MessageView, model: MessagesModel, qtbot: QtBot) -> None:
    show(view, model, [message(1, "assistant", "```python\ndef f():\n    return 'x'\n```")])
    body = answers(view)[0].findChild(CodeBlock)._body  # type: ignore[union-attr]
    qtbot.waitUntil(lambda: bool(body.document().firstBlock().layout().formats()))


def test_nothing_is_loaded_and_only_a_click_opens(
    view: MessageView, model: MessagesModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    show(view, model, [message(1, "assistant", "![x](https://e.org/x.png) [a](https://e.org) [b](file:///etc)")])
    (text,) = [text for text in answers(view)[0].findChildren(RichText) if text.isVisible()]
    kind = QTextDocument.ResourceType.ImageResource.value
    assert text.loadResource(kind, QUrl("https://e.org/x.png")) is None
    assert "<img" not in text.toHtml()
    assert opened == []
    text.anchorClicked.emit(QUrl("https://e.org"))
    text.anchorClicked.emit(QUrl("file:///etc"))
    assert opened == ["https://e.org"]


def test_another_theme_repaints_what_is_built(qtbot: QtBot, model: MessagesModel) -> None:
    theme = Theme("light")
    view = MessageView(model, theme)
    qtbot.addWidget(view)
    view.resize(700, 500)
    view.show()
    show(view, model, [message(1, "assistant", "Hello.")])
    before = answers(view)[0]
    theme.set_mode("dark")
    QApplication.processEvents()
    (after,) = answers(view)
    assert after is not before


def test_resizing_keeps_the_end_and_measures_again(view: MessageView, model: MessagesModel) -> None:
    show(view, model, [message(1, "user", "q"), message(2, "assistant", "word " * 400)])
    before = answers(view)[0].height()
    view.resize(400, 500)
    QApplication.processEvents()
    assert answers(view)[0].height() > before
    assert distance_to_end(view) == 0
