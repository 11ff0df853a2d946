"""The meter in one line above the composer, for windows too narrow for the panel. Painted from one `Reading`."""

from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.core.figures import format_bytes, format_range, format_rate
from app.core.reading import LINK_NAMES, Reading
from app.widgets.meter_panel import prompt_in_words, summary
from app.widgets.meter_parts import bars, link_color
from app.widgets.theme import Theme, mono_font, ui_font

_HEIGHT = 36
_CHART_WIDTH = 150
_BOLD = QFont.Weight.DemiBold


class MeterStrip(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._reading = Reading()
        self.setFixedHeight(_HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Meter")
        theme.changed.connect(self.update)

    def set_reading(self, reading: Reading) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        self.setAccessibleDescription(summary(reading))
        self.setToolTip(summary(reading))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(320, _HEIGHT)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        chart = QRectF(self.width() - _CHART_WIDTH, 4, _CHART_WIDTH, _HEIGHT - 8)
        bars(painter, chart, self._reading.bars, None, self._theme.palette)
        x = 0.0
        for text, font, color in self._words():
            width = QFontMetricsF(font).horizontalAdvance(text)
            if x + width > chart.left() - 8:
                break
            painter.setFont(font)
            painter.setPen(QColor(color))
            painter.drawText(QRectF(x, 0, width + 2, _HEIGHT), Qt.AlignmentFlag.AlignVCenter, text)
            x += width
        painter.end()

    def _words(self) -> list[tuple[str, QFont, str]]:
        """Most important first: what does not fit is left out from the end."""
        reading, palette = self._reading, self._theme.palette
        plain = ui_font(12)
        if reading.prompt is not None:
            return [(prompt_in_words(reading.prompt), plain, palette.muted)]
        if reading.tokens_per_second is None:
            return [("Figures appear with the next answer", plain, palette.muted)]
        words = [(format_rate(reading.tokens_per_second), ui_font(16, _BOLD), palette.text), (" tok/s", plain, palette.muted)]
        if reading.limit is not None and reading.limit.link is not None:
            words.append(("   limited by ", plain, palette.muted))
            words.append((LINK_NAMES[reading.limit.link], ui_font(12, _BOLD), link_color(palette, reading.limit.link)))
        if reading.bytes_per_token is not None:
            words.append((f"   {format_bytes(reading.bytes_per_token)}", mono_font(12), palette.text))
            words.append((" per token", plain, palette.muted))
        if reading.predicted_range is not None:
            words.append((f"   predicted {format_range(*reading.predicted_range)}", plain, palette.muted))
        return words
