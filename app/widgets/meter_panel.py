"""The meter at the right of the conversation, painted from one `Reading`. Computes no figure of its own.

A link is never told by its colour alone: it always has its name beside it.
"""

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.core.figures import format_bytes, format_count, format_ms, format_number, format_range, format_rate, three_digits
from app.core.reading import LINK_NAMES, LinkReading, PromptReading, Reading
from app.widgets.meter_parts import bars, link_color, shares, track
from app.widgets.theme import Theme, mono_font, ui_font
from engine.protocol import Link, Origin

_WIDTH, _MARGIN = 300, 18
_CHART_HEIGHT = 120
_DASH = "—"
_BOLD = QFont.Weight.DemiBold
_LINK_TIPS = {
    Link.VRAM: "How fast the GPU reads its own memory while it computes.",
    Link.PCIE: "How fast experts are copied from RAM to the GPU.",
    Link.RAM: "How fast the processor reads experts from RAM while it computes.",
    Link.DISK: "How fast experts that are not in RAM are read from the drive.",
}
_TIME_TIPS = {
    "Token p50": "Half of the last 60 tokens took this long or less.",
    "p95": "95 of 100 tokens took this long or less; the others stuttered.",
    "Waited": "How long computing waited for a link, on average per token.",
}


class MeterPanel(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._reading = Reading()
        self._y = 0.0
        self._tips: list[tuple[QRectF, str]] = []  # of what was painted last
        self.setFixedWidth(_WIDTH)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        self.setMinimumHeight(580)
        self.setAccessibleName("Meter")
        theme.changed.connect(self.update)

    def set_reading(self, reading: Reading) -> None:
        if reading == self._reading:
            return
        self._reading = reading
        self.setAccessibleDescription(summary(reading))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(_WIDTH, 580)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(_MARGIN, 0)
        self._tips.clear()
        reading = self._reading
        if reading.prompt is not None:
            self._paint_prompt(painter, reading.prompt)
        else:
            self._paint_speed(painter, reading.tokens_per_second, "tok/s")
            self._paint_limit(painter)
            self._paint_bytes(painter)
        self._paint_links(painter)
        if reading.prompt is None:
            self._paint_found(painter)
            self._paint_times(painter)
        painter.end()

    def event(self, event: QEvent) -> bool:
        if event.type() is not QEvent.Type.ToolTip or not isinstance(event, QHelpEvent):
            return super().event(event)
        QToolTip.showText(event.globalPos(), self.tip_at(QPointF(event.pos())), self)
        return True

    def tip_at(self, where: QPointF) -> str:
        """What the figure there means, "" where there is none."""
        return next((text for area, text in self._tips if area.contains(where)), "")

    def _tip(self, area: QRectF, text: str) -> None:
        self._tips.append((area.translated(_MARGIN, 0), text))

    @property
    def _inner(self) -> float:
        return self.width() - 2 * _MARGIN

    # Text: y is the baseline

    def _text(self, painter: QPainter, x: float, text: str, font: QFont, color: str) -> float:
        """Draws and returns where the text ends."""
        painter.setFont(font)
        painter.setPen(QColor(color))
        painter.drawText(QPointF(x, self._y), text)
        return x + QFontMetricsF(font).horizontalAdvance(text)

    def _right(self, painter: QPainter, text: str, font: QFont, color: str) -> None:
        self._text(painter, self._inner - QFontMetricsF(font).horizontalAdvance(text), text, font, color)

    def _heading(self, painter: QPainter, text: str) -> None:
        self._text(painter, 0, text, ui_font(12, _BOLD), self._theme.palette.muted)

    # Sections, each from `self._y` downwards

    def _paint_speed(self, painter: QPainter, rate: float | None, unit: str) -> None:
        palette = self._theme.palette
        self._y = 45
        number = format_rate(rate) if rate is not None else _DASH
        x = self._text(painter, 0, number, ui_font(34, QFont.Weight.Bold), palette.text if rate is not None else palette.faint)
        self._text(painter, x + 8, unit, ui_font(13), palette.muted)
        if self._reading.predicted_range is not None and self._reading.prompt is None:
            self._right(painter, f"predicted {format_range(*self._reading.predicted_range)}", ui_font(12), palette.muted)

    def _paint_limit(self, painter: QPainter) -> None:
        limit, palette = self._reading.limit, self._theme.palette
        self._y = 73
        if limit is None:
            words = [("Figures appear with the next answer.", ui_font(13), palette.muted)]
        elif limit.link is None:
            words = [(f"Limited by computing: {limit.reason}", ui_font(13), palette.muted)]
        else:
            words = [
                ("Limited by ", ui_font(13), palette.muted),
                (LINK_NAMES[limit.link], ui_font(13, _BOLD), link_color(palette, limit.link)),
                (f": {limit.reason}", ui_font(13), palette.muted),
            ]
        self._wrapped(painter, words)

    def _wrapped(self, painter: QPainter, parts: list[tuple[str, QFont, str]]) -> None:
        x = 0.0
        for text, font, color in parts:
            for word in text.split(" "):
                width = QFontMetricsF(font).horizontalAdvance(word)
                if x > 0 and x + width > self._inner:
                    x, self._y = 0.0, self._y + 19
                x = self._text(painter, x, word, font, color) + (QFontMetricsF(font).horizontalAdvance(" "))
            x -= QFontMetricsF(font).horizontalAdvance(" ")

    def _paint_bytes(self, painter: QPainter) -> None:
        reading, palette = self._reading, self._theme.palette
        self._y = 125
        self._heading(painter, "Bytes per token")
        if reading.bytes_per_token is not None:
            self._right(painter, format_bytes(reading.bytes_per_token), mono_font(12), palette.text)
        chart = QRectF(0, 138, self._inner, _CHART_HEIGHT)
        bars(painter, chart, reading.bars, reading.predicted_bytes, palette)
        painter.fillRect(QRectF(0, chart.bottom(), self._inner, 1), QColor(palette.line))
        self._y = chart.bottom() + 17
        count = len(reading.bars)
        left = f"{format_count(count, 'token')} ago" if count else "no tokens yet"
        left_end = self._text(painter, 0, left, ui_font(11), palette.faint)
        self._right(painter, "now", ui_font(11), palette.faint)
        if reading.predicted_bytes is not None:
            text = f"- - predicted {format_bytes(reading.predicted_bytes)}"
            free = self._inner - 24 - left_end - QFontMetricsF(ui_font(11)).horizontalAdvance(text)
            self._text(painter, left_end + free / 2, text, ui_font(11), palette.muted)
        self._y += 32

    def _paint_links(self, painter: QPainter) -> None:
        palette = self._theme.palette
        known = [link for link in self._reading.links if link.is_known]
        if not known:
            return
        self._heading(painter, "Links")
        self._right(painter, "now / ceiling, GB/s", ui_font(11), palette.faint)
        self._y += 29
        for reading in known:
            self._paint_link(painter, reading)
            self._tip(QRectF(0, self._y - 18, self._inner, 28), _LINK_TIPS[reading.link])
            self._y += 29
        self._paint_legend(painter, known)
        self._y += 33

    def _paint_link(self, painter: QPainter, reading: LinkReading) -> None:
        palette = self._theme.palette
        color = QColor(link_color(palette, reading.link))
        is_idle = reading.gbps is None
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(color)
        painter.drawRoundedRect(QRectF(0, self._y - 10, 10, 10), 3, 3)
        self._text(painter, 18, LINK_NAMES[reading.link], ui_font(12), palette.muted if is_idle else palette.text)
        top = max(reading.gbps or 0, reading.ceiling_gbps or 0, reading.predicted_gbps or 0)
        bar = QRectF(74, self._y - 8, 97, 6)
        track(painter, bar, (reading.gbps or 0) / top if top else 0, color, QColor(palette.raised))
        if reading.predicted_gbps is not None and top:
            x = bar.left() + bar.width() * reading.predicted_gbps / top
            painter.fillRect(QRectF(min(x, bar.right()) - 1, bar.center().y() - 6, 2, 12), QColor(palette.text))
        now = three_short(reading.gbps) if reading.gbps is not None else _DASH
        ceiling = f" / {three_short(reading.ceiling_gbps)}" if reading.ceiling_gbps is not None else ""
        self._right(painter, now + ceiling, mono_font(12), palette.faint if is_idle and not ceiling else palette.text)

    def _paint_legend(self, painter: QPainter, known: list[LinkReading]) -> None:
        palette = self._theme.palette
        parts = []
        x = 0.0
        if any(link.predicted_gbps is not None for link in known):
            painter.fillRect(QRectF(0, self._y - 11, 2, 12), QColor(palette.text))
            x = 8
            parts.append("predicted")
        if words := origins_in_words(known):
            parts.append(words)
        self._text(painter, x, " · ".join(parts), ui_font(11), palette.muted)

    def _paint_found(self, painter: QPainter) -> None:
        palette = self._theme.palette
        self._heading(painter, "Experts found in")
        bar = QRectF(0, self._y + 13, self._inner, 22)
        shares(painter, bar, self._reading.found, palette)
        self._y = bar.bottom() + 27

    def _paint_times(self, painter: QPainter) -> None:
        reading, palette = self._reading, self._theme.palette
        columns = (
            ("Token p50", reading.p50_seconds), ("p95", reading.p95_seconds), ("Waited", reading.waited_seconds),
        )  # fmt: skip
        for number, (title, seconds) in enumerate(columns):
            x = number * self._inner / 2.91
            self._text(painter, x, title, ui_font(12, _BOLD), palette.muted)
            self._tip(QRectF(x, self._y - 16, self._inner / 2.91, 40), _TIME_TIPS[title])
            self._y += 19
            value = format_ms(seconds) if seconds is not None else _DASH
            self._text(painter, x, value, mono_font(12), palette.text if seconds is not None else palette.faint)
            self._y -= 19

    def _paint_prompt(self, painter: QPainter, prompt: PromptReading) -> None:
        palette = self._theme.palette
        self._paint_speed(painter, prompt.tokens_per_second, "tok/s read")
        self._y = 73
        self._wrapped(painter, [(prompt_in_words(prompt), ui_font(13), palette.muted)])
        bar = QRectF(0, 108, self._inner, 6)
        track(painter, bar, prompt.share, QColor(palette.accent), QColor(palette.raised))
        self._y = 146
        self._heading(painter, "Bytes read")
        self._right(painter, format_bytes(prompt.bytes) if prompt.bytes else _DASH, mono_font(12), palette.text)
        self._y += 32


def prompt_in_words(prompt: PromptReading) -> str:
    done = format_number(prompt.reused_tokens + prompt.read_tokens)
    known = f", {format_number(prompt.reused_tokens)} of them known from before" if prompt.reused_tokens else ""
    return f"Reading the prompt: {done} of {format_count(prompt.prompt_tokens, 'token')}{known}"


def origins_in_words(links: list[LinkReading]) -> str:
    """'RAM derived, others measured'; only links that moved something have an origin."""
    used = [link for link in links if link.gbps is not None]
    derived = [LINK_NAMES[link.link] for link in used if link.origin is Origin.DERIVED]
    if not derived:
        return "all measured" if used else ""
    others = ", others measured" if len(derived) < len(used) else ""
    return f"{' and '.join(derived)} derived{others}"


def three_short(value: float) -> str:
    """Three digits at most, one behind the point: 412, 24.6, 0.6."""
    return f"{value:.1f}" if 0.05 <= value < 99.95 else three_digits(value) if value < 1 else f"{value:.0f}"


def summary(reading: Reading) -> str:
    """The panel in one sentence, for a screen reader."""
    if reading.prompt is not None:
        return prompt_in_words(reading.prompt)
    if reading.tokens_per_second is None:
        return "No figures yet"
    parts = [f"{format_rate(reading.tokens_per_second)} tokens per second"]
    if reading.predicted_range is not None:
        parts.append(f"predicted {format_range(*reading.predicted_range)}")
    if reading.limit is not None:
        parts.append(f"limited by {LINK_NAMES[reading.limit.link] if reading.limit.link else 'computing'}")
    if reading.bytes_per_token is not None:
        parts.append(f"{format_bytes(reading.bytes_per_token)} per token")
    return ", ".join(parts)
