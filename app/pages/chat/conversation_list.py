"""The column of conversations: new, search, rename, delete with a way back. Asks for changes, makes none itself."""

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, QPoint, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QColor, QFocusEvent, QKeyEvent, QPainter
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QListView,
    QMenu,
    QPushButton,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QVBoxLayout,
    QWidget,
)

from app.core.chats import Chat
from app.item_models.chat_list import ChatListModel, ChatListRole
from app.pages.chat.model_card import ModelCard
from app.widgets.theme import Theme

_Index = QModelIndex | QPersistentModelIndex
_WIDTH = 232
_UNDO_MS = 15_000
_DOT, _DOT_ROOM = 7, 20  # px of the sign beside a chat that is being answered
_SEARCH_MS = 150  # after the last key, so that a long history is not searched per letter


class ConversationList(QFrame):
    new_wanted = Signal()
    opened = Signal(object)  # Chat
    renamed = Signal(object, str)  # chat id (53 bits: too long for a C int), title
    deleted = Signal(object)  # Chat
    undone = Signal(object)  # Chat
    rename_ended = Signal()  # by a key: the keyboard is free

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
        self._search = _SearchField(self, placeholderText="Search chats", clearButtonEnabled=True)
        self._search.setToolTip("Search chats (Ctrl+F or Ctrl+K)")
        self._search.setAccessibleName("Search chats")
        self._search_later = QTimer(self, interval=_SEARCH_MS, singleShot=True)
        self._search_later.timeout.connect(self._find)
        self._search.returnPressed.connect(self._open_first)
        self._search.textChanged.connect(lambda: self._search_later.start())
        self._list = _Chats(self)
        self._list.setModel(model)
        self._list.setItemDelegate(_ChatDelegate(theme, self._list))
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

    @property
    def has_keyboard(self) -> bool:
        """The keyboard is on a chat of the list, which may be another one than the open."""
        return self._list.hasFocus() and self._current() is not None

    def rename_current(self) -> None:
        chat = self._current()
        if chat is None:
            return
        area = self._list.visualRect(self._list.currentIndex())
        edit = _TitleEdit(chat.title, self._list.viewport())
        edit.setGeometry(area)
        edit.renamed.connect(lambda title: self.renamed.emit(chat.id, title))
        edit.ended.connect(self.rename_ended)
        edit.show()
        edit.setFocus()

    # What the person does

    def _current(self) -> Chat | None:
        return self._model.chat_at(self._list.currentIndex())

    def _find(self) -> None:
        self._search_later.stop()
        self._model.set_search(self._search.text())

    def _open_first(self) -> None:
        self._find()
        if self._search.text().strip() and (chat := self._model.first_chat) is not None:
            self.opened.emit(chat)

    def _open(self, index: QModelIndex) -> None:
        chat = self._model.chat_at(index)
        if chat is not None:
            self.opened.emit(chat)

    def _show_menu(self, where: QPoint) -> None:
        if self._model.chat_at(self._list.indexAt(where)) is None:
            return
        self._list.setCurrentIndex(self._list.indexAt(where))
        menu = QMenu(self)
        menu.addAction("Rename\tF2", self.rename_current)
        menu.addAction("Delete\tDel", self._delete)
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
            self.undone.emit(self._deleted)


class _SearchField(QLineEdit):
    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
        else:
            super().keyPressEvent(event)


class _ChatDelegate(QStyledItemDelegate):
    """A dot at the right of the chat in which an answer is being written; its tooltip says so."""

    def __init__(self, theme: Theme, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme = theme

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: _Index) -> None:
        super().paint(painter, option, index)
        if index.data(ChatListRole.IS_WRITING):
            area = option.rect
            painter.save()
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(self._theme.palette.accent))
            painter.drawEllipse(QRectF(area.right() - 10 - _DOT, area.center().y() - _DOT / 2 + 1, _DOT, _DOT))
            painter.restore()

    def initStyleOption(self, option: QStyleOptionViewItem, index: _Index) -> None:
        super().initStyleOption(option, index)
        if index.data(ChatListRole.IS_WRITING):
            room = option.rect.width() - 2 * _DOT_ROOM - 4
            option.text = option.fontMetrics.elidedText(option.text, Qt.TextElideMode.ElideRight, room)


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
    ended = Signal()  # by Enter or Esc

    def __init__(self, title: str, parent: QWidget) -> None:
        super().__init__(title, parent)
        self._is_done = False
        self.setAccessibleName("Title")
        self.selectAll()
        self.returnPressed.connect(lambda: self._end(is_taken=True))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self._end(is_taken=False)
        else:
            super().keyPressEvent(event)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        if event.reason() != Qt.FocusReason.PopupFocusReason:
            self._finish(is_taken=True)

    def _end(self, *, is_taken: bool) -> None:
        self._finish(is_taken=is_taken)
        self.ended.emit()

    def _finish(self, *, is_taken: bool) -> None:
        if self._is_done:
            return
        self._is_done = True
        if is_taken and self.text().strip():
            self.renamed.emit(self.text().strip())
        self.hide()
        self.deleteLater()
