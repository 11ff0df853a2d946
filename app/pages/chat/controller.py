"""Sends, receives and stores: what a person wrote is on disk before the engine hears of it, an answer every 250 ms.

Knows no widget. An answer goes on being written and stored when another conversation is opened.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from PySide6.QtCore import QObject, QTimer, Signal

from app.backends.local import EngineState, LocalEngine
from app.core.chats import AnswerStats, Chat, ChatStore, MessageState, NotSavedError, StoredMessage
from app.core.figures import format_count
from app.core.said import Said
from app.core.settings import Settings
from app.core.shown_message import ENGINE_DIED
from app.item_models.messages import MessagesModel
from app.item_models.meter import MeterModel
from app.pages.chat.conversation import conversation
from engine.protocol import NO_REASONING, Failed, Finished, Meter, Progress, Reasoning, Sampling, Started, StopReason, Text

_STORE_MS = 250
_STOP_MS = 8000  # one token of a model that streams from a slow disk may take seconds
_TITLE_LENGTH = 60
_INTERRUPTIONS = (ENGINE_DIED, "engine.stopped", "engine.restarted")


@dataclass(slots=True)
class _Answer:
    """The one answer that is being written."""

    request_id: int
    message_id: int
    chat_id: int
    model: str
    begun: float
    prompt_tokens: int = 0
    said: Said = field(default_factory=Said)
    unread: list[Text] = field(default_factory=list)  # what is not in `said` yet
    first_at: float = 0.0
    first_tokens: int = 0
    total_tokens: int = 0

    def read(self) -> Said:
        """All of it so far."""
        self.said = self.said.plus(self.unread)
        self.unread.clear()
        return self.said

    def stats(self, now: float) -> AnswerStats:
        """The figures so far, by the window's clock; the engine's own replace them at the end."""
        seconds = now - self.first_at
        rate = (self.total_tokens - self.first_tokens) / seconds if seconds > 0 else 0.0
        return AnswerStats(self.total_tokens, rate, self.first_at - self.begun, "", self.model)


@dataclass(frozen=True, slots=True)
class _Final:
    """How an answer ended."""

    said: Said
    state: MessageState
    stats: AnswerStats


class ChatController(QObject):
    opened = Signal(object)  # Chat, or None for a new one
    chats_changed = Signal()  # titles, order or number
    answering_changed = Signal()
    context_changed = Signal()
    not_stopping = Signal()  # asked to stop, the engine goes on or hangs
    not_saved = Signal(str)  # why the answer that is being written is not on disk; once until it is
    saved_after_all = Signal()  # every answer is on disk again

    def __init__(
        self,
        chats: ChatStore,
        engine: LocalEngine,
        settings: Settings,
        messages: MessagesModel,
        meter: MeterModel,
        parent: QObject | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(parent)
        self._chats, self._engine, self._settings = chats, engine, settings
        self._messages, self._meter = messages, meter
        self._clock = clock
        self._answer: _Answer | None = None
        self._unsaved: dict[int, _Final] = {}  # by message: ended and not on disk, tried again until they are
        self._is_unsaved_told = False
        self._context_used: dict[int, int] = {}  # tokens by chat, as far as this session knows
        self.chat: Chat | None = None
        self._next_reasoning = ""  # of the chat that does not exist yet
        self._store_timer = QTimer(self, interval=_STORE_MS)
        self._store_timer.timeout.connect(self._store)
        self._patience = QTimer(self, interval=_STOP_MS, singleShot=True)
        self._patience.timeout.connect(self.not_stopping)
        engine.started.connect(self._started)
        engine.progress.connect(self._prompt_read)
        engine.text.connect(self._received)
        engine.meter.connect(self._metered)
        engine.finished.connect(self._finished)
        engine.failed.connect(self._failed)
        engine.state_changed.connect(self._engine_changed)

    # What the page asks

    @property
    def is_answering(self) -> bool:
        return self._answer is not None

    @property
    def is_answering_here(self) -> bool:
        """In the conversation that is open."""
        return self._answer is not None and self.chat is not None and self._answer.chat_id == self.chat.id

    @property
    def answered_chat(self) -> int | None:
        """Id of the conversation in which an answer is being written."""
        return self._answer.chat_id if self._answer is not None else None

    @property
    def context_used(self) -> int | None:
        """Tokens of the open conversation; None when this session has not counted them."""
        return self._context_used.get(self.chat.id) if self.chat else 0

    @property
    def reasoning(self) -> str:
        """Key of what was chosen for the open conversation, see `reasoning_words`."""
        return self.chat.reasoning if self.chat is not None else self._next_reasoning

    def choose_reasoning(self, key: str) -> None:
        """From the next answer on. Raises `NotSavedError`."""
        if self.chat is None:
            self._next_reasoning = key
        else:
            self._chats.set_reasoning(self.chat.id, key)
            self.chat = replace(self.chat, reasoning=key)
            self.chats_changed.emit()

    def new_chat(self) -> None:
        self.chat = None
        self._messages.reset(())
        self.opened.emit(None)

    def open(self, chat: Chat) -> None:
        self._store()  # so that an answer that is being written is read as far as it has come
        self.chat = chat
        self._messages.reset([self._as_known(message) for message in self._chats.messages(chat.id)])
        self.opened.emit(chat)

    def rename(self, chat_id: int, title: str) -> None:
        self._chats.rename(chat_id, title)
        self.chats_changed.emit()

    def delete(self, chat_id: int) -> None:
        if self._answer is not None and self._answer.chat_id == chat_id:
            self.stop()
        self._chats.delete(chat_id)
        if self.chat is not None and self.chat.id == chat_id:
            self.new_chat()
        self.chats_changed.emit()

    def undelete(self, chat: Chat) -> None:
        self._chats.undelete(chat.id)
        self.open(chat)
        self.chats_changed.emit()

    def send(self, text: str, model: str, reasoning: Reasoning = NO_REASONING) -> None:
        """`model` is the name that the answer is stored with. Raises `NotSavedError`; nothing has happened then."""
        assert not self.is_answering, "one answer at a time"
        is_new = self.chat is None
        chat = self.chat or self._created(title_of(text))
        question, answer = self._chats.add_question(chat.id, text)
        self.chat = chat
        self._messages.add(question)
        self._begin_answer(answer, model, reasoning)
        self.chats_changed.emit()
        if is_new:
            self.opened.emit(self.chat)

    def _created(self, title: str) -> Chat:
        chat = self._chats.create(title)
        self._chats.set_reasoning(chat.id, self._next_reasoning)
        return replace(chat, reasoning=self._next_reasoning)

    def regenerate(self, message_id: int, model: str, reasoning: Reasoning = NO_REASONING) -> None:
        """Answer again; that message and all after it are gone. Raises `NotSavedError`; nothing has happened then."""
        if self.is_answering or self.chat is None:
            return
        answer = self._chats.answer_again(self.chat.id, message_id)
        self._messages.remove_from(message_id)
        self._begin_answer(answer, model, reasoning)

    def stop(self) -> None:
        if self._answer is not None:
            self._engine.cancel(self._answer.request_id)
            self._patience.start()

    # The answer

    def _begin_answer(self, row: StoredMessage, model: str, reasoning: Reasoning) -> None:
        said = conversation(self._messages.messages)
        self._messages.add(row, notice="waiting for the engine")
        sampling = Sampling(
            max_tokens=self._settings.max_tokens, temperature=self._settings.temperature, top_p=self._settings.top_p
        )
        request_id = self._engine.generate(said, sampling, reasoning)
        self._answer = _Answer(request_id, row.id, row.chat_id, model, self._clock())
        self._store_timer.start()
        self.answering_changed.emit()

    def _of(self, request_id: int) -> _Answer | None:
        """The running answer, if the event belongs to it."""
        return self._answer if self._answer is not None and self._answer.request_id == request_id else None

    def _started(self, started: Started) -> None:
        answer = self._of(started.request_id)
        if answer is None:
            return
        answer.prompt_tokens = started.prompt_tokens
        self._meter.start(started)
        self._count_context(answer)
        if self.is_answering_here:
            self._messages.set_notice(f"reading the prompt, {format_count(started.prompt_tokens, 'token')}")

    def _prompt_read(self, progress: Progress) -> None:
        if self._of(progress.request_id) is not None:
            self._meter.advance(progress.done)

    def _received(self, text: Text) -> None:
        answer = self._of(text.request_id)
        if answer is None:
            return
        now = self._clock()
        if not answer.total_tokens:
            answer.first_at, answer.first_tokens = now, text.total_tokens
        answer.unread.append(text)
        answer.total_tokens = text.total_tokens
        self._count_context(answer)
        if self.is_answering_here:
            self._messages.append_text(text, answer.stats(now))

    def _metered(self, meter: Meter) -> None:
        if self._of(meter.request_id) is not None:
            self._meter.add(meter)

    def _finished(self, finished: Finished) -> None:
        answer = self._of(finished.request_id)
        if answer is None:
            return
        state = MessageState.STOPPED if finished.stop_reason is StopReason.CANCELLED else MessageState.COMPLETE
        stats = AnswerStats(
            finished.new_tokens,
            finished.tokens_per_second,
            finished.first_token_seconds,
            finished.stop_reason.value,
            answer.model,
        )
        self._context_used[answer.chat_id] = finished.context_used
        self._end_answer(answer, state, stats)

    def _failed(self, failed: Failed) -> None:
        answer = self._of(failed.request_id)
        if answer is None:
            return
        is_interruption = failed.code in _INTERRUPTIONS
        stats = answer.stats(self._clock()) if answer.total_tokens else AnswerStats(0, 0.0, 0.0, "", answer.model)
        if not is_interruption:
            stats = replace(stats, stop_reason=f"{failed.text} {failed.hint}".strip())
        elif failed.code == ENGINE_DIED:
            stats = replace(stats, stop_reason=ENGINE_DIED)
        self._end_answer(answer, MessageState.INTERRUPTED if is_interruption else MessageState.FAILED, stats)

    def _end_answer(self, answer: _Answer, state: MessageState, stats: AnswerStats) -> None:
        self._patience.stop()
        self._unsaved[answer.message_id] = _Final(answer.read(), state, stats)
        if self.is_answering_here:
            self._messages.finish(state, stats)
        self._answer = None
        self._store()
        self._meter.finish()
        self.answering_changed.emit()

    # The disk: when it is full or locked nothing ends, the next tick tries again with all of it

    def _store(self) -> None:
        try:
            for message_id, final in tuple(self._unsaved.items()):
                self._keep(message_id, final.said, state=final.state, stats=final.stats)
                del self._unsaved[message_id]
            if self._answer is not None and self._answer.total_tokens:
                self._keep(self._answer.message_id, self._answer.read())
        except NotSavedError as error:
            if not self._is_unsaved_told:
                self._is_unsaved_told = True
                self.not_saved.emit(str(error))
            return
        if self._answer is None:
            self._store_timer.stop()
        if self._is_unsaved_told:
            self._is_unsaved_told = False
            self.saved_after_all.emit()

    def _keep(self, message_id: int, said: Said, state: MessageState | None = None, stats: AnswerStats | None = None) -> None:
        """Raises `NotSavedError`."""
        self._chats.update_message(
            message_id, content=said.content, thought=said.thought, calls=said.calls, state=state, stats=stats
        )

    def _engine_changed(self, state: EngineState) -> None:
        """The engine is stopped when the window closes: the last moment at which an ended answer can be stored."""
        if state is EngineState.STOPPED:
            self._store()

    def _as_known(self, message: StoredMessage) -> StoredMessage:
        """What the store could not take is still here."""
        final = self._unsaved.get(message.id)
        if final is not None:
            return replace(_with(message, final.said), state=final.state, stats=final.stats)
        if self._answer is not None and self._answer.message_id == message.id:
            return _with(message, self._answer.read())
        return message

    def _count_context(self, answer: _Answer) -> None:
        self._context_used[answer.chat_id] = answer.prompt_tokens + answer.total_tokens
        self.context_changed.emit()


def _with(message: StoredMessage, said: Said) -> StoredMessage:
    return replace(message, content=said.content, thought=said.thought, calls=said.calls)


def title_of(text: str) -> str:
    """The first line with words in it, cut at a word."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "New chat")
    if len(line) <= _TITLE_LENGTH:
        return line
    head = line[:_TITLE_LENGTH].rsplit(" ", 1)[0]
    return f"{head}…"
