"""The column of conversations: new, search, rename, delete with a way back. Asks for changes, makes none itself."""

from PySide6.QtCore import QModelIndex, QPoint, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QLineEdit, QListView, QMenu, QPushButton, QVBoxLayout, QWidget

from app.core.chats import Chat
from app.item_models.chat_list import ChatListModel
from app.pages.chat.model_card import ModelCard
from app.widgets.theme import Theme

_WIDTH = 232
_UNDO_MS = 10_000
_SEARCH_MS = 150  # after the last key, so that a long history is not searched per letter


class ConversationList(QFrame):
    new_wanted = Signal()
    opened = Signal(object)  # Chat
    renamed = Signal(object, str)  # chat id (53 bits: too long for a C int), title
    deleted = Signal(object)  # Chat
    undone = Signal(object)  # chat id

    def __init__(self, model: ChatListModel, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "rail")
        self.setFixedWidth(_WIDTH)
        self._model = model
        self._theme = theme
        self._deleted: Chat | None = None
        self._new = QPushButton("New chat", self)
        self._new.setIconSize(QSize(16, 16))
        self._new.setToolTip("New chat (Ctrl+N)")
        self._new.clicked.connect(self.new_wanted)
        self._search = QLineEdit(self, placeholderText="Search chats", clearButtonEnabled=True)
        self._search.setAccessibleName("Search chats")
        self._search_later = QTimer(self, interval=_SEARCH_MS, singleShot=True)
        self._search_later.timeout.connect(lambda: self._model.set_search(self._search.text()))
        self._search.textChanged.connect(lambda: self._search_later.start())
        self._list = _Chats(self)
        self._list.setModel(model)
        self._list.setAccessibleName("Chats")
        self._list.clicked.connect(self._open)
        self._list.activated.connect(self._open)
        self._list.rename_wanted.connect(self.rename_current)
        self._list.delete_wanted.connect(self._delete)
        self._list.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self._list.customContextMenuRequested.connect(self._show_menu)
        self._undo = self._undo_bar()
        self._undo_timer = QTimer(self, interval=_UNDO_MS, singleShot=True)
        self._undo_timer.timeout.connect(self._undo.hide)
        self.card = ModelCard(theme, self)
        self._lay_out()
        theme.changed.connect(self._paint_icons)
        self._paint_icons()

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 12, 12, 12)
        column.setSpacing(8)
        column.addWidget(self._new)
        column.addWidget(self._search)
        column.addWidget(self._list, 1)
        column.addWidget(self._undo)
        column.addWidget(self.card)

    def _undo_bar(self) -> QFrame:
        bar = QFrame(self)
        bar.setProperty("kind", "card")
        self._undo_text = QLabel("Deleted", bar)
        self._undo_text.setProperty("kind", "muted")
        self._undo_text.setTextFormat(Qt.TextFormat.PlainText)
        button = QPushButton("Undo", bar)
        button.setProperty("kind", "ghost")
        button.clicked.connect(self._take_back)
        row = QHBoxLayout(bar)
        row.setContentsMargins(12, 2, 4, 2)
        row.addWidget(self._undo_text, 1)
        row.addWidget(button)
        bar.hide()
        return bar

    def _paint_icons(self) -> None:
        self._new.setIcon(self._theme.icon("plus", self._theme.palette.text))

    # What the page calls

    def focus_search(self) -> None:
        self._search.setFocus()
        self._search.selectAll()

    def select(self, chat: Chat | None) -> None:
        index = self._model.index_of(chat.id) if chat is not None else QModelIndex()
        self._list.setCurrentIndex(index)
        if not index.isValid():
            self._list.clearSelection()

    def rename_current(self) -> None:
        chat = self._current()
        if chat is None:
            return
        area = self._list.visualRect(self._list.currentIndex())
        edit = _TitleEdit(chat.title, self._list.viewport())
        edit.setGeometry(area)
        edit.renamed.connect(lambda title: self.renamed.emit(chat.id, title))
        edit.show()
        edit.setFocus()

    # What the person does

    def _current(self) -> Chat | None:
        return self._model.chat_at(self._list.currentIndex())

    def _open(self, index: QModelIndex) -> None:
        chat = self._model.chat_at(index)
        if chat is not None:
            self.opened.emit(chat)

    def _show_menu(self, where: QPoint) -> None:
        if self._model.chat_at(self._list.indexAt(where)) is None:
            return
        self._list.setCurrentIndex(self._list.indexAt(where))
        menu = QMenu(self)
        menu.addAction("Rename", self.rename_current)
        menu.addAction("Delete", self._delete)
        menu.exec(self._list.viewport().mapToGlobal(where))
        menu.deleteLater()

    def _delete(self) -> None:
        chat = self._current()
        if chat is None:
            return
        self._deleted = chat
        self._undo_text.setText(
            self._undo_text.fontMetrics().elidedText(f"Deleted {chat.title}", Qt.TextElideMode.ElideRight, 130)
        )
        self._undo.show()
        self._undo_timer.start()
        self.deleted.emit(chat)

    def _take_back(self) -> None:
        self._undo.hide()
        if self._deleted is not None:
            self.undone.emit(self._deleted.id)


class _Chats(QListView):
    rename_wanted = Signal()
    delete_wanted = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setEditTriggers(QListView.EditTrigger.NoEditTriggers)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setUniformItemSizes(False)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_F2:
            self.rename_wanted.emit()
        elif event.key() == Qt.Key.Key_Delete:
            self.delete_wanted.emit()
        else:
            super().keyPressEvent(event)


class _TitleEdit(QLineEdit):
    """Over the row: Enter or leaving takes the title, Esc gives up."""

    renamed = Signal(str)

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self._is_done = False
        self.setAccessibleName("Title")
        self.selectAll()
        self.returnPressed.connect(lambda: self._finish(is_taken=True))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self._finish(is_taken=False)
        else:
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if event.reason() != Qt.FocusReason.PopupFocusReason:
            self._finish(is_taken=True)

    def _finish(self, *, is_taken: bool) -> None:
        if self._is_done:
            return
        self._is_done = True
        if is_taken and self.text().strip():
            self.renamed.emit(self.text().strip())
        self.hide()
        self.deleteLater()
