"""A choice with its price: name, slider, value, and what it costs in memory and speed. Shows values, knows no plan."""

from collections.abc import Sequence

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QGridLayout, QLabel, QSlider, QWidget

from app.widgets.text_label import text_label

_NAME_PX, _SLIDER_PX, _VALUE_PX = 132, 144, 78
_NARROW_SLIDER_PX = 110
_NARROW = 500  # below, the price stands under the slider


class PriceRow(QWidget):
    """Each step of the slider is one of `stops`; `moved` tells the value at which it came to stand."""

    moved = Signal(object)

    def __init__(self, name: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._stops: tuple[int, ...] = ()
        self._name = QLabel(name, self)
        self._slider = _Slider(Qt.Orientation.Horizontal, self)
        self._slider.setAccessibleName(name)
        self._slider.setFixedWidth(_SLIDER_PX)
        self._slider.setPageStep(1)
        self._name.setBuddy(self._slider)
        self._name.setFixedWidth(_NAME_PX)
        self._value = QLabel(self, textFormat=Qt.TextFormat.PlainText)
        self._value.setProperty("kind", "mono")
        self._value.setMinimumWidth(_VALUE_PX)
        self._value.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._price = text_label(kind="muted")
        self._slider.valueChanged.connect(self._tell)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 2, 0, 2)
        self._grid.setHorizontalSpacing(10)
        self._grid.setVerticalSpacing(0)
        self._grid.setColumnStretch(3, 1)
        for column, widget in enumerate((self._name, self._slider, self._value)):
            self._grid.addWidget(widget, 0, column)
        self._grid.addWidget(self._price, 0, 3)
        self._is_narrow = False

    @property
    def slider(self) -> QSlider:
        return self._slider

    @property
    def words(self) -> tuple[str, str]:
        return self._value.text(), self._price.text()

    def show_choice(self, stops: Sequence[int], now: int, value: str, price: str) -> None:
        """`now` need not be one of the stops: the slider stands at the nearest."""
        self._stops = tuple(stops)
        nearest = min(range(len(self._stops)), key=lambda place: abs(self._stops[place] - now), default=0)
        with QSignalBlocker(self._slider):
            self._slider.setRange(0, max(0, len(self._stops) - 1))
            if not self._slider.isSliderDown():
                self._slider.setValue(nearest)
        self._slider.setEnabled(len(self._stops) > 1)
        self._value.setText(value)
        self._price.setText(price)
        self._slider.setAccessibleDescription(f"{value}. {price}")
        self._slider.setToolTip(f"{value}. {price}")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        is_narrow = self.width() < _NARROW
        if is_narrow != self._is_narrow:
            self._is_narrow = is_narrow
            self._grid.removeWidget(self._price)
            self._grid.addWidget(self._price, *((1, 0, 1, 4) if is_narrow else (0, 3, 1, 1)))
            self._slider.setFixedWidth(_NARROW_SLIDER_PX if is_narrow else _SLIDER_PX)

    def _tell(self, place: int) -> None:
        if 0 <= place < len(self._stops):
            self.moved.emit(self._stops[place])


class _Slider(QSlider):
    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()  # the page scrolls
