"""The loaded model at the foot of the conversation list: name, state, where its experts are. Shows values only."""

from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.core.figures import format_bytes
from app.widgets.theme import Theme, ui_font
from engine.protocol import Plan


class ModelCard(QFrame):
    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "card")
        self._theme = theme
        self._dot = _Dot(self)
        self._name = QLabel(self)
        self._name.setTextFormat(Qt.TextFormat.PlainText)
        font = ui_font()
        font.setBold(True)
        self._name.setFont(font)
        self._name.setStyleSheet("font-weight: 600;")
        self._detail = QLabel(self)
        self._detail.setProperty("kind", "muted")
        self._detail.setTextFormat(Qt.TextFormat.PlainText)
        self._detail.setWordWrap(True)
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._dot)
        row.addWidget(self._name, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 10, 12, 10)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(self._detail)

    def show_state(self, name: str, detail: str, state: str) -> None:
        """`state` is "ok", "busy", "bad" or "off"; it is also told by `detail`."""
        palette = self._theme.palette
        self._dot.set_color({"ok": palette.ok, "busy": palette.warn, "bad": palette.bad}.get(state, palette.faint))
        self._name.setText(self._name.fontMetrics().elidedText(name, Qt.TextElideMode.ElideMiddle, 165))
        self._name.setToolTip(name)
        self._detail.setText(detail)
        self.setAccessibleName(f"{name}, {detail}")


class _Dot(QWidget):
    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._color = QColor()
        self.setFixedSize(8, 16)

    def set_color(self, color: str) -> None:
        self._color = QColor(color)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(self._color)
        painter.drawEllipse(QRectF(0, 4, 8, 8))
        painter.end()


def plan_summary(plan: Plan) -> str:
    """'BF16 · 612 MB of 1.27 GB of experts in RAM'."""
    experts = plan.num_layers * plan.num_experts * plan.expert_bytes
    weights = plan.weight_format.upper()
    if not experts:
        return weights
    if plan.expert_ram_bytes >= experts:
        return f"{weights} · all {format_bytes(experts)} of experts in RAM"
    return f"{weights} · {format_bytes(plan.expert_ram_bytes)} of {format_bytes(experts)} of experts in RAM"
