"""A page that scrolls, with its contents in one column in the middle."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QScrollArea, QVBoxLayout, QWidget


def scrolled(column: QVBoxLayout, most_px: int, parent: QWidget) -> QScrollArea:
    """The column in the middle of a page that scrolls, no wider than is comfortable to read."""
    page = QWidget(parent)
    page.setProperty("kind", "page")
    inner = QWidget(page)
    inner.setMaximumWidth(most_px)
    inner.setLayout(column)
    row = QHBoxLayout(page)
    row.setContentsMargins(0, 0, 0, 0)
    row.addStretch(0)
    row.addWidget(inner, 1)
    row.addStretch(0)
    area = QScrollArea(parent, widgetResizable=True)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setWidget(page)
    return area
