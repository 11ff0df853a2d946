"""Drawing shared by the meter's panel and strip: stacked bars, a track, shares. Functions over a painter; no state."""

from collections.abc import Iterable, Sequence

from PySide6.QtCore import QLineF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPainterPath, QPen

from app.core.reading import LINK_NAMES
from app.widgets.palette import Palette
from app.widgets.theme import ui_font
from engine.protocol import Link

SLOTS = 60  # bars side by side
_GAP = 8  # px around a label


def link_color(palette: Palette, link: Link) -> str:
    return {Link.VRAM: palette.vram, Link.PCIE: palette.pcie, Link.RAM: palette.ram, Link.DISK: palette.disk}[link]


def bars(painter: QPainter, area: QRectF, tokens: Sequence[dict[Link, int]], predicted: int | None, palette: Palette) -> None:
    """Bytes of each token, stacked by link, the newest at the right; a dashed line where the prediction is."""
    top = max([sum(token.values()) for token in tokens] + [predicted or 0])
    if top <= 0:
        return
    step = area.width() / SLOTS
    scale = area.height() / (top * 1.02)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
    for number, token in enumerate(tokens):
        x = area.left() + (SLOTS - len(tokens) + number) * step
        bottom = area.bottom()
        for link in Link:
            height = token.get(link, 0) * scale
            if height > 0:
                painter.fillRect(QRectF(x, bottom - height, max(1.0, step * 0.6), height), QColor(link_color(palette, link)))
                bottom -= height
    painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
    if predicted:
        pen = QPen(QColor(palette.text), 1)
        pen.setDashPattern([3, 3])
        painter.setPen(pen)
        y = round(area.bottom() - predicted * scale) + 0.5
        painter.drawLine(QLineF(area.left(), y, area.right(), y))


def track(painter: QPainter, area: QRectF, share: float, color: QColor, background: QColor) -> None:
    radius = area.height() / 2
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(background)
    painter.drawRoundedRect(area, radius, radius)
    if share > 0:
        painter.setBrush(color)
        filled = QRectF(area.topLeft(), area.size())
        filled.setWidth(max(area.height(), area.width() * min(1.0, share)))
        painter.drawRoundedRect(filled, radius, radius)


def shares(painter: QPainter, area: QRectF, parts: dict[Link, float] | None, palette: Palette) -> None:
    """One bar of named shares; a name that does not fit into its share is written at the right of the bar."""
    font = ui_font(11, QFont.Weight.DemiBold)
    shown = {link: share for link, share in (parts or {}).items() if share > 0}
    whole, beside = area, outside(shown, area.width(), font)
    area = QRectF(whole.topLeft(), whole.size())
    area.setWidth(whole.width() - _room(beside.values(), font))
    outline = QPainterPath()
    outline.addRoundedRect(area, 6, 6)
    painter.save()
    painter.setClipPath(outline)
    painter.fillRect(area, QColor(palette.raised))
    x = area.left()
    painter.setFont(font)
    for link, share in shown.items():
        part = QRectF(x, area.top(), area.width() * share, area.height())
        painter.fillRect(part, QColor(link_color(palette, link)))
        if link not in beside:
            painter.setPen(QColor(palette.on_accent))
            painter.drawText(part, Qt.AlignmentFlag.AlignCenter, share_label(link, share))
        x += part.width()
    painter.setClipping(False)
    for link, label in beside.items():
        painter.setPen(QColor(link_color(palette, link)))
        text = QRectF(x + _GAP, area.top(), QFontMetricsF(font).horizontalAdvance(label) + 2, area.height())
        painter.drawText(text, Qt.AlignmentFlag.AlignVCenter, label)
        x += _room([label], font)
    painter.restore()


def share_label(link: Link, share: float) -> str:
    return f"{LINK_NAMES[link]} {f'{share * 100:.0f}' if share >= 0.005 else '<1'} %"


def outside(parts: dict[Link, float], width: float, font: QFont) -> dict[Link, str]:
    """The labels that find no room in their shares of a bar which shares `width` with them."""
    beside: dict[Link, str] = {}
    while True:
        bar = width - _room(beside.values(), font)
        small = {
            link: share_label(link, share)
            for link, share in parts.items()
            if link in beside or QFontMetricsF(font).horizontalAdvance(share_label(link, share)) + _GAP > bar * share
        }
        if small == beside:
            return beside
        beside = small


def _room(labels: Iterable[str], font: QFont) -> float:
    return sum(QFontMetricsF(font).horizontalAdvance(label) + _GAP for label in labels)
