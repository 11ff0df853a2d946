"""An editor widget for each type of setting. Knows types and limits, not what a setting is for."""

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QCheckBox, QComboBox, QDoubleSpinBox, QLineEdit, QSpinBox, QWidget

from app.core.settings import Setting

_Verdict = tuple[QValidator.State, str, int]  # with the text and the position of the cursor
Store = Callable[[Any], bool]  # keeps a value, or says no when it does not fit


def make_editor(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    if setting.choices:
        return _choice(setting, value, store)
    return _EDITORS[type(setting.default)](setting, value, store)


def _choice(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    editor = QComboBox()
    for choice, label in setting.choices.items():
        editor.addItem(label, choice)
    editor.setCurrentIndex(editor.findData(value))
    editor.activated.connect(lambda row: store(editor.itemData(row)))
    _leave_the_wheel(editor)
    return editor


def _switch(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    editor = QCheckBox()
    editor.setChecked(value)
    editor.toggled.connect(store)
    return editor


def _whole_number(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    editor = _WholeNumber()
    editor.setRange(*(setting.between or (-(2**31), 2**31 - 1)))
    editor.setGroupSeparatorShown(True)
    editor.setValue(value)
    _finish_number(editor, lambda: store(editor.value()))
    return editor


def _number(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    editor = _Number(decimals=2, singleStep=0.05)
    editor.setRange(*(setting.between or (-1e9, 1e9)))
    editor.setValue(value)
    _finish_number(editor, lambda: store(round(editor.value(), 2)))
    return editor


class _WholeNumber(QSpinBox):
    """Out of range can be written, and becomes the nearest bound when the field is left; Qt alone swallows the digits."""

    def validate(self, text: str, position: int) -> _Verdict:
        return _tolerant(super().validate(text, position), self.locale().toLongLong(text)[1])

    def fixup(self, text: str) -> str:
        number, is_number = self.locale().toLongLong(text)
        return self.textFromValue(min(max(number, self.minimum()), self.maximum())) if is_number else text


class _Number(QDoubleSpinBox):
    """The same for numbers with a fraction."""

    def validate(self, text: str, position: int) -> _Verdict:
        return _tolerant(super().validate(text, position), self.locale().toDouble(text)[1])

    def fixup(self, text: str) -> str:
        number, is_number = self.locale().toDouble(text)
        return self.textFromValue(min(max(number, self.minimum()), self.maximum())) if is_number else text


def _tolerant(verdict: _Verdict, is_number: bool) -> _Verdict:
    """A validator's verdict with a number that it refuses as one that is not finished."""
    state, text, position = verdict
    is_refused = state is QValidator.State.Invalid and is_number
    return (QValidator.State.Intermediate, text, position) if is_refused else verdict


def _finish_number(editor: QSpinBox | QDoubleSpinBox, finished: Callable[[], object]) -> None:
    editor.lineEdit().setTextMargins(8, 0, 8, 0)  # a style sheet's padding does not reach the field inside
    editor.setKeyboardTracking(False)
    editor.valueChanged.connect(finished)
    _leave_the_wheel(editor)


def _text(setting: Setting[Any], value: Any, store: Store) -> QWidget:
    editor = QLineEdit(value, placeholderText=setting.placeholder)

    def finish() -> None:
        editor.setProperty("bad", not store(editor.text().strip()))
        editor.style().polish(editor)

    editor.editingFinished.connect(finish)
    return editor


_EDITORS: dict[type, Callable[[Setting[Any], Any, Store], QWidget]] = {
    bool: _switch, int: _whole_number, float: _number, str: _text,
}  # fmt: skip


class _WheelGuard(QObject):
    """Scrolling the page must not change a value that the pointer happens to pass over."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Wheel and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def _leave_the_wheel(editor: QWidget) -> None:
    editor.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    editor.installEventFilter(_WheelGuard(editor))
