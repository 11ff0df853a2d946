"""Numbered steps, one below the other: which is done, which is open, what each found. Painted; knows no step by name."""

from dataclasses import dataclass

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QEnterEvent, QFont, QFontMetricsF, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QVBoxLayout, QWidget

from app.core.tooltip import plain_tooltip
from app.widgets.theme import Theme, ui_font

_CIRCLE, _GAP, _PAD = 22, 12, 6


@dataclass(frozen=True, slots=True)
class StepView:
    """`state` is "done", "now", "open" or "closed"; a closed one cannot be entered."""

    title: str
    detail: str
    state: str


class StepList(QWidget):
    chosen = Signal(int)  # from 1

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._steps: list[_StepButton] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(4)
        theme.changed.connect(self.update)

    def show_steps(self, views: tuple[StepView, ...]) -> None:
        while len(self._steps) < len(views):
            number = len(self._steps) + 1
            step = _StepButton(self._theme, number, self)
            step.clicked.connect(lambda _=False, number=number: self.chosen.emit(number))
            self._steps.append(step)
            self._column.addWidget(step)
        for step, view in zip(self._steps, views, strict=True):
            step.show_view(view)

    def set_folded(self, is_folded: bool) -> None:
        """The circles alone."""
        for step in self._steps:
            step.set_folded(is_folded)


class _StepButton(QAbstractButton):
    def __init__(self, theme: Theme, number: int, parent: QWidget) -> None:
        super().__init__(parent)
        self._theme, self._number = theme, number
        self._view = StepView("", "", "closed")
        self._is_folded = self._is_under_mouse = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        policy = QSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def show_view(self, view: StepView) -> None:
        if view == self._view:
            return
        self._view = view
        self.setEnabled(view.state != "closed")
        self.setCursor(Qt.CursorShape.PointingHandCursor if view.state != "closed" else Qt.CursorShape.ArrowCursor)
        state = {"done": ", done", "now": ", open now"}.get(view.state, "")
        self.setAccessibleName(f"Step {self._number}: {view.title}{state}")
        self.setAccessibleDescription(view.detail)
        self._tell()
        self.updateGeometry()
        self.update()

    def set_folded(self, is_folded: bool) -> None:
        self._is_folded = is_folded
        self._tell()
        self.updateGeometry()
        self.update()

    def _tell(self) -> None:
        self.setToolTip(plain_tooltip(f"{self._view.title}\n{self._view.detail}".strip()) if self._is_folded else "")

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        if self._is_folded or not self._view.detail:
            return _CIRCLE + 2 * _PAD
        return round(_PAD + 21 + self._detail_rect(width).height() + _PAD)

    def sizeHint(self) -> QSize:
        width = self.width() or 200
        return QSize(_CIRCLE + 2 * _PAD if self._is_folded else 200, self.heightForWidth(width))

    def minimumSizeHint(self) -> QSize:
        return QSize(_CIRCLE + 2 * _PAD, _CIRCLE + 2 * _PAD)

    def enterEvent(self, event: QEnterEvent) -> None:
        self._is_under_mouse = True
        self.update()

    def leaveEvent(self, event: QEvent) -> None:
        self._is_under_mouse = False
        self.update()

    def _detail_rect(self, width: int) -> QRectF:
        left = _PAD + _CIRCLE + _GAP
        room = QRectF(left, _PAD + 21, max(20, width - left - _PAD), 200)
        flags = int(Qt.TextFlag.TextWordWrap)
        return QFontMetricsF(ui_font(12)).boundingRect(room, flags, self._view.detail)

    def paintEvent(self, event: QPaintEvent) -> None:
        palette, view = self._theme.palette, self._view
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self._is_under_mouse and self.isEnabled():
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(QColor(palette.selection))
            painter.drawRoundedRect(QRectF(self.rect()), 8, 8)
        if self.hasFocus():
            painter.setPen(QPen(QColor(palette.accent), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), 8, 8)
        self._paint_circle(painter)
        if not self._is_folded:
            left = _PAD + _CIRCLE + _GAP
            painter.setFont(ui_font(13, QFont.Weight.DemiBold if view.state == "now" else QFont.Weight.Normal))
            painter.setPen(QColor(palette.faint if view.state == "closed" else palette.text))
            painter.drawText(QRectF(left, _PAD, self.width() - left, _CIRCLE), Qt.AlignmentFlag.AlignVCenter, view.title)
            painter.setFont(ui_font(12))
            painter.setPen(QColor(palette.muted))
            painter.drawText(self._detail_rect(self.width()), int(Qt.TextFlag.TextWordWrap), view.detail)
        painter.end()

    def _paint_circle(self, painter: QPainter) -> None:
        palette, view = self._theme.palette, self._view
        left = (self.width() - _CIRCLE) / 2 if self._is_folded else _PAD
        circle = QRectF(left, _PAD, _CIRCLE, _CIRCLE)
        is_now, is_done = view.state == "now", view.state == "done"
        painter.setPen(Qt.PenStyle.NoPen if is_now or is_done else QPen(QColor(palette.line), 1.2))
        fill = palette.accent if is_now else palette.raised if is_done else None
        painter.setBrush(QColor(fill) if fill else Qt.BrushStyle.NoBrush)
        painter.drawEllipse(circle)
        if is_done:
            painter.setPen(
                QPen(QColor(palette.ok), 1.8, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
            )
            x, y = circle.center().x(), circle.center().y()
            painter.drawPolyline([QPointF(x - 4, y), QPointF(x - 1.2, y + 3), QPointF(x + 4.2, y - 3.4)])
            return
        painter.setFont(ui_font(11, QFont.Weight.DemiBold if is_now else QFont.Weight.Normal))
        painter.setPen(QColor(palette.on_accent if is_now else palette.muted if view.state == "open" else palette.faint))
        painter.drawText(circle, Qt.AlignmentFlag.AlignCenter, str(self._number))
