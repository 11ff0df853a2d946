"""The loaded model at the foot of the conversation list: name, state, where its experts are. Shows values only."""

from dataclasses import dataclass

from PySide6.QtCore import QRectF, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QVBoxLayout, QWidget

from app.core.figures import format_bytes
from app.core.plan_words import on_card
from app.core.tooltip import plain_tooltip
from app.widgets.theme import Theme, ui_font
from engine.protocol import Plan


@dataclass(frozen=True, slots=True)
class CardState:
    name: str
    detail: str
    state: str  # "ok", "busy", "bad" or "off"; `detail` tells it too
    action: str = ""  # what can be done about it, on a button


class ModelCard(QFrame):
    acted = Signal()

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
        self._action = QPushButton(self)
        self._action.setProperty("kind", "chip")
        self._action.clicked.connect(self.acted)
        self._action.hide()
        row = QHBoxLayout()
        row.setSpacing(8)
        row.addWidget(self._dot)
        row.addWidget(self._name, 1)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 10, 12, 10)
        column.setSpacing(4)
        column.addLayout(row)
        column.addWidget(self._detail)
        column.addWidget(self._action, 0, Qt.AlignmentFlag.AlignLeft)

    def show_state(self, card: CardState) -> None:
        palette = self._theme.palette
        self._dot.set_color({"ok": palette.ok, "busy": palette.warn, "bad": palette.bad}.get(card.state, palette.faint))
        self._name.setText(self._name.fontMetrics().elidedText(card.name, Qt.TextElideMode.ElideMiddle, 165))
        self._name.setToolTip(plain_tooltip(card.name))
        self._detail.setText(card.detail)
        self._action.setText(card.action)
        self._action.setAccessibleName(f"{card.action} {card.name}")
        self._action.setVisible(bool(card.action))
        self.setAccessibleName(f"{card.name}, {card.detail}")


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
    card = on_card(plan)
    in_vram = card.num_experts if card is not None else 0
    if in_vram * plan.expert_bytes >= experts:
        return f"{weights} · all {format_bytes(experts)} of experts in VRAM"
    if in_vram:
        held, in_ram = (format_bytes(count * plan.expert_bytes) for count in (in_vram, sum(plan.slots_per_layer)))
        return f"{weights} · of {format_bytes(experts)} of experts {held} in VRAM, {in_ram} in RAM"
    num_slots = sum(plan.slots_per_layer)  # in bytes they are larger than what they hold: each is padded
    if num_slots == plan.num_layers * plan.num_experts:
        return f"{weights} · all {format_bytes(experts)} of experts in RAM"
    return f"{weights} · {format_bytes(num_slots * plan.expert_bytes)} of {format_bytes(experts)} of experts in RAM"
