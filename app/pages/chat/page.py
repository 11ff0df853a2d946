"""The chat page: builds its parts and joins them. What is said and stored is the controllers' business."""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QKeySequence, QResizeEvent, QShortcut
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QHBoxLayout,
    QPushButton,
    QScrollArea,
    QStackedLayout,
    QVBoxLayout,
    QWidget,
)

from app.core.chats import Chat, NotSavedError
from app.core.problem import Problem
from app.core.reasoning_words import choices, chosen, wish
from app.item_models.chat_list import ChatListModel
from app.item_models.messages import MessagesModel
from app.item_models.meter import MeterModel
from app.pages.chat.controller import ChatController
from app.pages.chat.conversation_list import ConversationList
from app.pages.chat.header import ChatHeader
from app.pages.chat.loading_bar import LoadingBar
from app.pages.chat.model_choice import ModelChoice
from app.pages.chat.placeholder import Placeholder
from app.pages.chat.status import card_state, is_looking, placeholder_words, short_title, why_not_send
from app.pages.services import Services
from app.widgets.composer import Composer
from app.widgets.error_banner import ErrorBanner
from app.widgets.message_view import MessageView
from app.widgets.meter_panel import MeterPanel
from app.widgets.meter_strip import MeterStrip
from engine.protocol import Reasoning

_RAIL = 56  # of the window beside this page
_LIST_FROM, _PANEL_FROM = 1000 - _RAIL, 760  # page widths from which there is room for the list and for the panel
_COLUMN = 860


_UNSAVED = "The answer could not be saved"


def _ask_folder(parent: QWidget) -> str:
    """A folder, or "" when none was chosen."""
    return QFileDialog.getExistingDirectory(parent, "Open a model folder")


class ChatPage(QWidget):
    page_wanted = Signal(str)  # key of another page
    opening_wanted = Signal(str, str)  # the same, and what to open there

    def __init__(
        self, services: Services, parent: QWidget | None = None, *, ask_folder: Callable[[QWidget], str] = _ask_folder
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "page")
        self._services = services
        self._ask_folder = ask_folder
        theme, engine = services.theme, services.engine
        self._messages = MessagesModel(self)
        self._meter = MeterModel(self)
        self._chats = ChatListModel(services.chats, self)
        self._choice = ModelChoice(engine, services.settings, self)
        self._chat = ChatController(services.chats, engine, services.settings, self._messages, self._meter, self)
        self._list = ConversationList(self._chats, theme, self)
        self._header = ChatHeader(theme, self)
        self._banner = ErrorBanner(theme, self)
        self._problem: Problem | None = None  # what the banner said last
        self._notice = ErrorBanner(theme, self, is_quiet=True)
        self._view = MessageView(self._messages, theme, self)
        self._placeholder = Placeholder(self)
        self._loading = LoadingBar(self)
        self._strip = MeterStrip(theme, self)
        self._composer = Composer(theme, self)
        self._panel = MeterPanel(theme)
        self._plan_link = QPushButton("Plan and prices of this model ›", self)
        self._plan_link.setProperty("kind", "ghost")
        self._plan_link.setToolTip("Where it lives, why it is as fast as predicted, and what would help")
        self._drafts: dict[int | None, str] = {}  # what is not sent yet, by chat; None is the new one
        self._draft_of: int | None = None  # the chat whose draft is in the composer
        self._is_list_wanted: bool | None = None  # while narrow: None follows the width
        self._lay_out()
        self._connect()
        self._add_shortcuts()
        self._show_chat(None)
        self._show_state()
        self._show_meter()
        self._list.hide()  # until the first resize: a page of every part would not let a small window be small
        self._side.hide()
        self.setFocusProxy(self._composer.field)

    def activate(self) -> None:
        """The page has been brought to the front."""
        self._chats.refresh()
        self._composer.focus()

    def open_item(self, what: str) -> None:
        """Load the model of that folder, or of that name."""
        if Path(what).is_absolute():
            self._choice.open_folder(what)
        else:
            self._choice.choose(what)

    # Building

    def _lay_out(self) -> None:
        self._stack = QStackedLayout()
        self._stack.addWidget(self._placeholder)
        self._stack.addWidget(self._view)
        self._foot = QVBoxLayout()
        self._foot.setSpacing(8)
        for part in (self._loading, self._strip, self._composer):
            self._foot.addWidget(part)
        self._top = QVBoxLayout()
        self._top.addWidget(self._banner)
        self._top.addWidget(self._notice)
        self._top.setSpacing(0)
        middle = _Middle(self)
        middle.resized.connect(self._align)
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._header)
        line = QFrame(middle)
        line.setProperty("kind", "divider")
        column.addWidget(line)
        column.addLayout(self._top)
        column.addLayout(self._stack, 1)
        column.addLayout(self._foot)
        self._middle = middle
        self._side = _scrolled(self._panel, self._plan_link, self)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(0)
        row.addWidget(self._list)
        row.addWidget(middle, 1)
        row.addWidget(self._side)

    def _connect(self) -> None:
        self._list.new_wanted.connect(self._new_chat)
        self._list.opened.connect(self._open)
        self._list.renamed.connect(lambda number, title: self._saved("The title", lambda: self._chat.rename(number, title)))
        self._list.deleted.connect(lambda chat: self._saved("That", lambda: self._chat.delete(chat.id)))
        self._list.undone.connect(self._undelete)
        self._list.rename_ended.connect(self._composer.focus)
        for banner in (self._banner, self._notice):
            banner.closed.connect(self._composer.focus)
        for signal in (self._header.model_chosen, self._header.reload_wanted, self._list.card.acted):
            signal.connect(self._composer.focus)
        self._header.model_chosen.connect(self._choice.choose)
        self._header.reload_wanted.connect(self._choice.restart)
        self._list.card.acted.connect(self._choice.restart)
        self._header.folder_wanted.connect(self._open_folder)
        self._header.models_wanted.connect(self._choice.look_again)
        self._header.reasoning.chosen.connect(self._choose_reasoning)
        self._header.list_toggled.connect(self._toggle_list)
        self._header.meter_toggled.connect(self._set_meter_visible)
        self._placeholder.acted.connect(self._choice.look_again)
        self._composer.submitted.connect(self._send)
        self._composer.stopped.connect(self._chat.stop)
        self._view.regenerate_requested.connect(self._regenerate)
        self._choice.changed.connect(self._show_state)
        self._choice.problem.connect(self._show_problem)
        self._choice.settings_wanted.connect(lambda: self.page_wanted.emit("settings"))
        self._choice.load_begun.connect(self._forget_model)
        self._choice.notice.connect(self._notice.show_problem)
        self._chat.opened.connect(self._show_chat)
        self._chat.chats_changed.connect(self._refresh_list)
        self._chat.answering_changed.connect(self._show_state)
        self._chat.context_changed.connect(self._show_context)
        self._meter.changed.connect(self._show_meter)
        self._plan_link.clicked.connect(lambda: self.opening_wanted.emit("wizard", self._choice.place))
        self._services.engine.loaded.connect(lambda loaded: self._meter.set_plan(loaded.plan))
        self._messages.rowsInserted.connect(self._show_middle)
        self._messages.modelReset.connect(self._show_middle)
        self._chat.not_stopping.connect(self._offer_restart)
        self._chat.not_saved.connect(self._show_unsaved)
        self._chat.saved_after_all.connect(self._forget_unsaved)
        self._services.theme.changed.connect(self._show_state)
        self._services.theme.changed.connect(self._draw_edge)

    def _add_shortcuts(self) -> None:
        keys = {
            "Ctrl+N": self._new_chat,
            "Ctrl+F": self._search,
            "Ctrl+K": self._search,
            "Ctrl+M": lambda: self._set_meter_visible(not self._services.settings.meter_visible),
            "F2": self._rename,
        }
        for key, act in keys.items():
            # Wherever in the window the keyboard is; not while another page is shown.
            shortcut = QShortcut(QKeySequence(key), self, context=Qt.ShortcutContext.WindowShortcut)
            shortcut.activated.connect(act)

    # What the person does

    def _new_chat(self) -> None:
        self._chat.new_chat()
        self._composer.focus()

    def _open(self, chat: Chat) -> None:
        if self._chat.chat is None or self._chat.chat.id != chat.id:
            self._chat.open(chat)
        if self.width() < _LIST_FROM:
            self._is_list_wanted = None
            self._arrange()
        self._composer.focus()

    def _open_folder(self) -> None:
        if folder := self._ask_folder(self):
            self._choice.open_folder(folder)
        self._composer.focus()

    def _send(self, text: str) -> None:
        before = self._draft_of
        reasoning = self._reasoning()
        kept = "It is still in the field."
        if self._saved("The message", lambda: self._chat.send(text, self._choice.title, reasoning), kept):
            self._composer.clear()
            self._drafts.pop(before, None)  # a new chat has got its number, and what was sent is no draft
            self._view.scroll_to_end()
        self._composer.focus()

    def _regenerate(self, message_id: int) -> None:
        self._saved("Another answer", lambda: self._chat.regenerate(message_id, self._choice.title, self._reasoning()))
        self._composer.focus()

    def _reasoning(self) -> Reasoning:
        return wish(self._choice.reasoning, self._chat.reasoning)

    def _choose_reasoning(self, key: str) -> None:
        self._saved("That", lambda: self._chat.choose_reasoning(key))
        self._show_state()
        self._composer.focus()

    def _undelete(self, chat: Chat) -> None:
        self._saved("That", lambda: self._chat.undelete(chat))
        self._composer.focus()

    def _saved(self, what: str, act: Callable[[], None], comfort: str = "") -> bool:
        """Whether `act` reached the disk; if not, the banner says so."""
        try:
            act()
        except NotSavedError as error:
            self._show_problem(Problem(f"{what} could not be saved: {error}. {comfort}".rstrip()))
            return False
        return True

    def _search(self) -> None:
        self._is_list_wanted = True
        self._arrange()
        self._list.focus_search()

    def _rename(self) -> None:
        self._is_list_wanted = True
        self._arrange()
        if not self._list.has_keyboard:
            self._list.select(self._chat.chat)
        self._list.rename_current()

    def _toggle_list(self) -> None:
        self._is_list_wanted = self._list.isHidden()
        self._arrange()

    def _set_meter_visible(self, visible: bool) -> None:
        self._services.settings.meter_visible = visible
        self._arrange()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self._chat.is_answering:
            self._chat.stop()
        else:
            super().keyPressEvent(event)

    # What is shown

    def _show_chat(self, chat: Chat | None) -> None:
        self._change_draft(chat.id if chat is not None else None)
        self._header.set_title(chat.title if chat is not None else "New chat")
        self._refresh_list()
        self._show_state()

    def _change_draft(self, chat_id: int | None) -> None:
        if chat_id == self._draft_of:
            return
        self._drafts[self._draft_of], self._draft_of = self._composer.text, chat_id
        self._composer.set_text(self._drafts.pop(chat_id, ""))

    def _refresh_list(self) -> None:
        self._chats.refresh()
        chat = self._chat.chat
        if chat is not None:
            shown = self._chats.chat_at(self._chats.index_of(chat.id))
            self._header.set_title(shown.title if shown is not None else chat.title)
        self._list.select(chat)

    def _show_state(self) -> None:
        choice, state = self._choice, self._services.engine.state
        has_looked = not is_looking(state, choice)
        self._list.card.setVisible(has_looked)
        self._list.card.show_state(card_state(state, choice))
        self._header.set_has_looked(has_looked)
        self._header.set_model(choice.title, is_loading=bool(choice.loading))
        self._header.reasoning.show_choices(choices(choice.reasoning), chosen(choice.reasoning, self._chat.reasoning))
        self._header.set_models(choice.models or (), choice.name, choice.folder, can_reload=choice.can_reload)
        self._loading.setVisible(bool(choice.loading))
        self._loading.show_progress(choice.loading, choice.progress)
        elsewhere = self._answering_elsewhere()
        self._chats.set_writing(self._chat.answered_chat)
        self._composer.set_model(choice.title)
        self._composer.set_blocked(why_not_send(state, choice, answering_elsewhere=elsewhere))
        self._composer.set_generating(self._chat.is_answering, short_title(elsewhere) if elsewhere else "")
        self._view.set_can_regenerate(choice.plan is not None and not self._chat.is_answering)
        self._placeholder.show_text(**placeholder_words(state, choice))
        self._plan_link.setVisible(choice.plan is not None)
        self._show_context()
        self._show_middle()

    def _answering_elsewhere(self) -> str:
        """Title of the chat that is being answered while another is open."""
        if not self._chat.is_answering or self._chat.is_answering_here:
            return ""
        return next(
            (chat.title for chat in self._services.chats.chats() if chat.id == self._chat.answered_chat), "A deleted chat"
        )

    def _show_context(self) -> None:
        self._composer.set_context(self._chat.context_used, self._choice.plan.context if self._choice.plan else 0)

    def _show_middle(self) -> None:
        self._stack.setCurrentWidget(self._view if self._messages.rowCount() else self._placeholder)

    def _show_meter(self) -> None:
        reading = self._meter.reading()
        self._panel.set_reading(reading)
        self._strip.set_reading(reading)

    def _offer_restart(self) -> None:
        sentence = "The engine does not stop. A restart ends the answer where it is."
        self._show_problem(Problem(sentence, "", (("Restart", self._choice.restart),), is_of_engine=True))

    def _show_problem(self, problem: Problem) -> None:
        self._problem = problem
        self._banner.show_problem(problem.sentence, problem.detail, problem.actions)

    def _show_unsaved(self, why: str) -> None:
        self._show_problem(Problem(f"{_UNSAVED}: {why}."))

    def _forget_unsaved(self) -> None:
        if self._problem is not None and self._problem.sentence.startswith(_UNSAVED):
            self._banner.hide()

    def _forget_model(self) -> None:
        self._notice.hide()
        if self._problem is not None and self._problem.is_of_engine:
            self._banner.hide()

    # Room

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if (event.oldSize().width() < _LIST_FROM) != (event.size().width() < _LIST_FROM):
            self._is_list_wanted = None
        self._arrange()

    def _arrange(self) -> None:
        """List, panel and strip, as far as there is room and the person wants them."""
        is_narrow = self.width() < _LIST_FROM
        self._list.setVisible(not is_narrow if self._is_list_wanted is None else self._is_list_wanted or not is_narrow)
        self._header.set_can_fold(is_narrow)
        is_wanted = self._services.settings.meter_visible
        self._header.set_meter_visible(is_wanted)
        self._side.setVisible(is_wanted and self.width() >= _PANEL_FROM)
        self._strip.setVisible(is_wanted and self.width() < _PANEL_FROM)
        self._draw_edge()

    def _align(self, width: int) -> None:
        """Composer and banner stand in the column of the messages."""
        side = max(20, (width - _COLUMN) // 2)
        self._foot.setContentsMargins(side, 8, side, 16)
        self._top.setContentsMargins(side - 12, 0, side - 12, 0)  # the banner brings 12 of its own

    def _draw_edge(self) -> None:
        palette = self._services.theme.palette
        edge = f"1px solid {palette.line}" if not self._side.isHidden() else "none"
        self._middle.setStyleSheet(f"QFrame#middle {{ border: none; border-right: {edge}; }}")


class _Middle(QFrame):
    resized = Signal(int)  # its width

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("middle")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.resized.emit(event.size().width())


def _scrolled(panel: MeterPanel, link: QPushButton, parent: QWidget) -> QScrollArea:
    """The panel and the link below it, in a window that may be too low for them."""
    whole = QWidget()
    column = QVBoxLayout(whole)
    column.setContentsMargins(0, 0, 0, 12)
    column.setSpacing(0)
    column.addWidget(panel, 1)
    row = QHBoxLayout()
    row.setContentsMargins(9, 0, 9, 0)
    row.addWidget(link)
    row.addStretch(1)
    column.addLayout(row)
    area = QScrollArea(parent)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setFixedWidth(panel.width())
    area.setWidget(whole)
    return area
