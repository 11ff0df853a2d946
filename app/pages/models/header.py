"""The top of the models page: title, what it is judged for, search, folder, sign-in; then views, sorting and filters."""

from collections.abc import Mapping

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QComboBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

VIEWS = {"recommended": "Recommended", "here": "On this computer", "all": "All"}
_SEARCH_PX = 260


class ModelsHeader(QWidget):
    searched = Signal(str)
    search_left = Signal()
    folder_wanted = Signal()
    sign_in_wanted = Signal()
    view_changed = Signal(str)
    order_changed = Signal()  # sort, format or support

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._note = QLabel(self, textFormat=Qt.TextFormat.PlainText, wordWrap=True)
        self._note.setProperty("kind", "muted")
        self.search = _Search(self)
        self.search.returnPressed.connect(lambda: self.searched.emit(self.search.text()))
        self.search.left.connect(self.search_left)
        self._sort, self._format = QComboBox(self), QComboBox(self)
        self._sort.setAccessibleName("Sort by")
        self._format.setAccessibleName("Format")
        self._supported = QCheckBox("Supported only", self)
        self._supported.setToolTip("Only architectures that Stoker runs")
        self._supported.setChecked(True)
        self._views = QButtonGroup(self)
        self._chips: dict[str, QPushButton] = {}
        for editor in (self._sort, self._format):
            editor.setProperty("kind", "chip")
            editor.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
            editor.activated.connect(lambda _: self.order_changed.emit())
        self._supported.toggled.connect(lambda _: self.order_changed.emit())
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(18)
        column.addLayout(self._first_line())
        column.addLayout(self._second_line())

    @property
    def view(self) -> str:
        return next(key for key, chip in self._chips.items() if chip.isChecked())

    @property
    def sort(self) -> str:
        return str(self._sort.currentData())

    @property
    def weight_format(self) -> str:
        return str(self._format.currentData() or "")

    @property
    def only_supported(self) -> bool:
        return self._supported.isChecked()

    def set_note(self, text: str) -> None:
        self._note.setText(text)

    def set_view(self, key: str) -> None:
        self._chips[key].setChecked(True)

    def set_count(self, count: int) -> None:
        """Models on this computer."""
        self._chips["here"].setText(f"{VIEWS['here']} {count}" if count else VIEWS["here"])

    def set_orders(self, sorts: Mapping[str, str], formats: tuple[str, ...], *, can_filter: bool, has_hub: bool) -> None:
        """What can be chosen now; a choice that is still there stays."""
        _fill(self._sort, dict(sorts))
        _fill(self._format, {"": "Format: any"} | {name: name for name in formats})
        self._sort.setVisible(can_filter)
        self._format.setVisible(can_filter and len(formats) > 1)
        self._supported.setVisible(has_hub)

    def _first_line(self) -> QHBoxLayout:
        title = QLabel("Models", self)
        title.setProperty("kind", "page-title")
        words = QVBoxLayout()
        words.setSpacing(6)
        words.addWidget(title)
        words.addWidget(self._note)
        folder, sign_in = QPushButton("Add folder", self), QPushButton("Sign in", self)
        folder.setToolTip("List a model, or all models of a folder, that are on this computer already")
        sign_in.setToolTip("An access token of Hugging Face, for models that are given only to those who sign in")
        folder.clicked.connect(self.folder_wanted)
        sign_in.clicked.connect(self.sign_in_wanted)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addLayout(words, 2)
        row.addWidget(self.search, 1, Qt.AlignmentFlag.AlignBottom)
        for button in (folder, sign_in):
            row.addWidget(button, 0, Qt.AlignmentFlag.AlignBottom)
        return row

    def _second_line(self) -> QHBoxLayout:
        row = QHBoxLayout()
        row.setSpacing(6)
        for key, text in VIEWS.items():
            chip = QPushButton(text, self)
            chip.setCheckable(True)
            chip.setProperty("kind", "chip")
            chip.clicked.connect(lambda _=False, key=key: self.view_changed.emit(key))
            self._views.addButton(chip)
            self._chips[key] = chip
            row.addWidget(chip)
        self._chips["recommended"].setChecked(True)
        row.addStretch(1)
        row.addWidget(self._supported)
        row.addWidget(self._sort)
        row.addWidget(self._format)
        return row


class _Search(QLineEdit):
    left = Signal()  # Escape, or emptied

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, placeholderText="Search Hugging Face")
        self.setAccessibleName("Search Hugging Face")
        self.setToolTip("Enter searches, an empty field ends the search (Ctrl+F)")
        self.setMaximumWidth(_SEARCH_PX)
        self.textChanged.connect(lambda text: None if text else self.left.emit())

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.clear()
        else:
            super().keyPressEvent(event)


def _fill(box: QComboBox, choices: dict[str, str]) -> None:
    if [box.itemData(row) for row in range(box.count())] == list(choices):
        return
    chosen = box.currentData()
    box.clear()
    for key, text in choices.items():
        box.addItem(text, key)
    box.setCurrentIndex(max(0, box.findData(chosen)))
