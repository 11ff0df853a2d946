"""Where a model lives, as a picture: a bar for each kind of memory and the links between them. Painted from values alone."""

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPainterPath, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.core.plan_words import Bar, LinkLine, Row, Segment
from app.core.tooltip import plain_tooltip
from app.widgets.meter_parts import link_color
from app.widgets.theme import Theme, mono_font, ui_font

_BAR, _LINK = 30, 30
_NAME_PX, _RIGHT_PX, _STEM_PX = 104, 98, 24
_NARROW = 460  # below, the room goes under the name
_BOLD = QFont.Weight.DemiBold


class TierBars(QWidget):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._rows: tuple[Row, ...] = ()
        self._tips: list[tuple[QRectF, str]] = []  # of what was painted last
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        theme.changed.connect(self.update)

    def set_rows(self, rows: Sequence[Row]) -> None:
        if tuple(rows) == self._rows:
            return
        self._rows = tuple(rows)
        words = [row.words if isinstance(row, Bar) else f"{row.text} {row.rate}" for row in self._rows]
        self.setAccessibleName("Where it will live")
        self.setAccessibleDescription(". ".join(words))
        self.updateGeometry()
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(420, sum(_BAR if isinstance(row, Bar) else _LINK for row in self._rows))

    def minimumSizeHint(self) -> QSize:
        return QSize(240, self.sizeHint().height())

    def event(self, event: QEvent) -> bool:
        if event.type() is not QEvent.Type.ToolTip or not isinstance(event, QHelpEvent):
            return super().event(event)
        text = next((text for area, text in self._tips if area.contains(QPointF(event.pos()))), "")
        QToolTip.showText(event.globalPos(), plain_tooltip(text), self)
        return True

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self._tips.clear()
        is_narrow = self.width() < _NARROW
        name_px = 76 if is_narrow else _NAME_PX
        figures = QFontMetricsF(mono_font(12))
        bars = [row for row in self._rows if isinstance(row, Bar)]
        right_px = max([0 if is_narrow else _RIGHT_PX, *(figures.horizontalAdvance(bar.right) + 12 for bar in bars)])
        y = 0.0
        for row in self._rows:
            if isinstance(row, Bar):
                self._paint_bar(painter, row, QRectF(name_px, y, max(60.0, self.width() - name_px - right_px), _BAR))
                y += _BAR
            else:
                self._paint_link(painter, row, QRectF(name_px, y, self.width() - name_px, _LINK))
                y += _LINK
        painter.end()

    def _paint_bar(self, painter: QPainter, bar: Bar, area: QRectF) -> None:
        palette = self._theme.palette
        painter.setFont(ui_font(13, _BOLD))
        painter.setPen(QColor(palette.text))
        painter.drawText(QRectF(0, area.top(), area.left() - 8, area.height()), Qt.AlignmentFlag.AlignVCenter, bar.name)
        painter.setFont(mono_font(12))
        painter.setPen(QColor(palette.bad if bar.is_over else palette.muted))
        right = QRectF(area.right() + 6, area.top(), self.width() - area.right() - 6, area.height())
        painter.drawText(right, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), bar.right)
        outline = QPainterPath()
        outline.addRoundedRect(area, 7, 7)
        painter.save()
        painter.setClipPath(outline)
        painter.fillRect(area, QColor(palette.raised))
        x = area.left()
        for segment in bar.segments:
            width = area.width() * segment.bytes / bar.room if bar.room else 0.0
            self._paint_segment(painter, segment, QRectF(x, area.top(), max(2.0, width), area.height()))
            x += max(2.0, width)
        painter.restore()
        self._tips.append((area, f"{bar.words}"))

    def _paint_segment(self, painter: QPainter, segment: Segment, area: QRectF) -> None:
        palette = self._theme.palette
        painter.fillRect(area, QColor(getattr(palette, segment.color)))
        if area.width() > 6:
            painter.fillRect(QRectF(area.right() - 1, area.top(), 1, area.height()), QColor(palette.surface))
        font = ui_font(11, _BOLD)
        metrics = QFontMetricsF(font)
        for text in (segment.label, segment.short):
            if metrics.horizontalAdvance(text) + 10 <= area.width():
                painter.setFont(font)
                painter.setPen(QColor(palette.on_accent))
                painter.drawText(area, Qt.AlignmentFlag.AlignCenter, text)
                return

    def _paint_link(self, painter: QPainter, line: LinkLine, area: QRectF) -> None:
        palette = self._theme.palette
        painter.fillRect(QRectF(area.left() + _STEM_PX, area.top(), 2, area.height()), QColor(palette.line))
        left = area.left() + _STEM_PX + 12
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(link_color(palette, line.link)))
        painter.drawRoundedRect(QRectF(left, area.center().y() - 4, 8, 8), 2.5, 2.5)
        left += 16
        painter.setFont(ui_font(12))
        painter.setPen(QColor(palette.muted))
        metrics = QFontMetricsF(ui_font(12))
        room = area.right() - left - QFontMetricsF(mono_font(12)).horizontalAdvance(line.rate) - 8
        text = metrics.elidedText(line.text, Qt.TextElideMode.ElideRight, room)
        painter.drawText(QRectF(left, area.top(), room, area.height()), Qt.AlignmentFlag.AlignVCenter, text)
        left += metrics.horizontalAdvance(text) + 8
        painter.setFont(mono_font(12))
        painter.drawText(QRectF(left, area.top(), area.right() - left, area.height()), Qt.AlignmentFlag.AlignVCenter, line.rate)
