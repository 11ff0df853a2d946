"""The one style sheet of the window, made from a palette. Widgets choose a look by the property `kind`.

QPushButton: none (bordered), "primary", "ghost" (no border), "chip" (a pill). QComboBox: none, "chip".
QFrame: "card", "row" (in a card, takes the keyboard), "rail", "divider".
QLabel: "muted", "muted-body", "faint", "page-title", "title-large", "title", "heading", "name", "number", "figure", "mono",
"mono-muted", "warn", "bad".
Any text field with property `bad` set to true is marked.
"""

from string import Template

from app.widgets.icons import icon_path
from app.widgets.palette import Palette

_SHEET = Template("""
QWidget { color: $text; }
QMainWindow, QDialog, QWidget[kind="page"] { background: $bg; }
QToolTip { background: $raised; color: $text; border: 1px solid $line; padding: 4px 8px; }

QLabel { background: transparent; }
QLabel[kind="muted"] { color: $muted; font-size: 12px; }
QLabel[kind="faint"] { color: $faint; font-size: 11px; }
QLabel[kind="muted-body"] { color: $muted; }
QLabel[kind="figure"] { font-size: 34px; font-weight: 700; }
QLabel[kind="title-large"] { font-size: 17px; font-weight: 600; }
QLabel[kind="warn"] { color: $warn; font-size: 12px; }
QLabel[kind="page-title"] { font-size: 22px; font-weight: 600; }
QLabel[kind="name"] { font-weight: 600; }
QLabel[kind="number"] { font-weight: 600; }
QLabel[kind="title"] { font-size: 15px; font-weight: 600; }
QLabel[kind="heading"] { color: $muted; font-size: 12px; font-weight: 600; }
QLabel[kind="mono"] { font-family: "$mono"; font-size: 12px; }
QLabel[kind="mono-muted"] { font-family: "$mono"; font-size: 12px; color: $muted; }
QLabel[kind="bad"] { color: $bad; font-size: 12px; }

QFrame[kind="card"] { background: $surface; border: 1px solid $line; border-radius: 12px; }
QFrame[kind="row"] { background: transparent; border: 1px solid transparent; border-radius: 11px; }
QFrame[kind="row"]:hover { background: $hover; }
QFrame[kind="row"]:focus { border-color: $accent; }
QFrame[kind="rail"] { background: $bg; border: none; border-right: 1px solid $line; }
QFrame[kind="divider"] { background: $line; border: none; max-height: 1px; min-height: 1px; }

QPushButton, QToolButton { background: $surface; border: 1px solid $line; border-radius: 8px; padding: 0 12px;
    min-height: 30px; outline: none; }
QPushButton:hover, QToolButton:hover { background: $raised; }
QPushButton:pressed, QPushButton:checked, QToolButton:pressed, QToolButton:checked { background: $selection; }
QPushButton:disabled, QToolButton:disabled { color: $faint; background: $bg; }
QPushButton:focus, QToolButton:focus { border-color: $accent; }
QPushButton::menu-indicator, QToolButton::menu-indicator { image: none; width: 0; }
QPushButton[kind="primary"] { background: $accent; border-color: $accent; color: $on_accent; font-weight: 600; }
QPushButton[kind="primary"]:hover { background: $accent_hover; border-color: $accent_hover; }
QPushButton[kind="primary"]:focus { border-color: $text; }
QPushButton[kind="primary"]:disabled { background: $raised; border-color: $line; color: $faint; }
QPushButton[kind="ghost"], QToolButton[kind="ghost"] { background: transparent; border-color: transparent; color: $muted; }
QPushButton[kind="ghost"] { padding: 0 8px; }
QToolButton[kind="ghost"] { padding: 0 4px; }
QPushButton[kind="ghost"]:hover, QToolButton[kind="ghost"]:hover { background: $selection; color: $text; }
QPushButton[kind="ghost"]:disabled, QToolButton[kind="ghost"]:disabled { color: $faint; }
QPushButton[kind="ghost"]:focus, QToolButton[kind="ghost"]:focus { border-color: $accent; }
QPushButton[kind="chip"] { background: transparent; color: $muted; border-radius: 12px; min-height: 22px; padding: 0 10px;
    font-size: 12px; }
QPushButton[kind="chip"]:hover { background: $selection; color: $text; }
QPushButton[kind="chip"]:checked { background: $selection; color: $text; }
QPushButton[kind="chip"]:focus { border-color: $accent; }
QToolButton[kind="rail"] { background: transparent; border: 1px solid transparent; border-radius: 8px; padding: 0;
    min-width: 38px; max-width: 38px; min-height: 38px; max-height: 38px; }
QToolButton[kind="rail"]:hover, QToolButton[kind="rail"]:checked { background: $selection; }
QToolButton[kind="rail"]:focus { border-color: $accent; }

QLineEdit, QPlainTextEdit, QTextEdit, QComboBox, QSpinBox, QDoubleSpinBox { background: $surface; border: 1px solid $line;
    border-radius: 8px; color: $text; selection-background-color: $accent; selection-color: $on_accent; }
QLineEdit, QComboBox { padding: 0 10px; min-height: 30px; }
QComboBox[kind="chip"] { background: transparent; color: $muted; border-radius: 12px; min-height: 22px; padding: 0 4px 0 10px;
    font-size: 12px; }
QComboBox[kind="chip"]:hover { background: $selection; color: $text; }
QComboBox[kind="chip"]:focus { border-color: $accent; }
QSpinBox, QDoubleSpinBox { padding: 0; min-height: 30px; }
QPlainTextEdit, QTextEdit { padding: 4px 6px; }
QLineEdit:focus, QPlainTextEdit:focus, QTextEdit:focus, QComboBox:focus, QSpinBox:focus,
QDoubleSpinBox:focus { border-color: $accent; }
QLineEdit:disabled, QComboBox:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled { color: $faint; background: $bg; }
QSpinBox QLineEdit, QDoubleSpinBox QLineEdit { background: transparent; border: none; padding: 0; min-height: 0; }
QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button, QDoubleSpinBox::down-button { border: none; width: 0;
    height: 0; }
QLineEdit[bad="true"] { border-color: $bad; }
QComboBox::drop-down { border: none; width: 28px; }
QComboBox::down-arrow { image: url("$chevron"); width: 16px; height: 16px; }
QComboBox QAbstractItemView { background: $surface; border: 1px solid $line; border-radius: 8px; padding: 4px; outline: none;
    selection-background-color: $selection; selection-color: $text; }
QComboBox QAbstractItemView::item { min-height: 28px; padding: 0 6px; }
QCheckBox { background: transparent; spacing: 8px; min-height: 30px; }
QCheckBox::indicator { width: 16px; height: 16px; background: $surface; border: 1px solid $faint; border-radius: 4px; }
QCheckBox::indicator:checked { background: $accent; border-color: $accent; image: url("$check"); }
QCheckBox::indicator:focus { border-color: $text; }

QListView, QTreeView, QTableView { background: transparent; border: none; outline: none; }
QListView::item { border-radius: 8px; padding: 7px 10px; color: $muted; border: 1px solid transparent; }
QListView::item:hover { background: $raised; color: $text; }
QListView::item:selected { background: $selection; color: $text; }
QListView::item:disabled { background: transparent; color: $faint; padding: 12px 6px 3px 6px; }
QListView:focus::item:selected { border-color: $accent; }

QScrollArea, QStackedWidget { background: transparent; border: none; }
QScrollArea > QWidget > QWidget[kind="page"] { background: $bg; }
QScrollBar { background: transparent; border: none; margin: 0; }
QScrollBar:vertical { width: 10px; }
QScrollBar:horizontal { height: 10px; }
QScrollBar::handle { background: $line; border-radius: 3px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 28px; }
QScrollBar::handle:horizontal { min-width: 28px; }
QScrollBar::handle:hover { background: $faint; }
QScrollBar::add-line, QScrollBar::sub-line, QScrollBar::add-page, QScrollBar::sub-page { background: transparent; width: 0;
    height: 0; }

QMenu { background: $surface; border: 1px solid $line; border-radius: 8px; padding: 4px; }
QMenu::item { padding: 6px 24px 6px 12px; border-radius: 6px; background: transparent; }
QMenu::item:selected { background: $selection; }
QMenu::item:disabled { color: $faint; }
QMenu::separator { height: 1px; background: $line; margin: 4px 8px; }

QSlider { background: transparent; min-height: 24px; }
QSlider::groove:horizontal { height: 4px; background: $raised; border-radius: 2px; }
QSlider::sub-page:horizontal { background: $accent; border-radius: 2px; }
QSlider::handle:horizontal { width: 14px; height: 14px; margin: -5px 0; border-radius: 7px; background: $text; }
QSlider::handle:horizontal:focus { background: $accent; }
QSlider::sub-page:horizontal:disabled, QSlider::handle:horizontal:disabled { background: $faint; }

QProgressBar { background: $raised; border: none; border-radius: 3px; min-height: 6px; max-height: 6px; }
QProgressBar::chunk { background: $accent; border-radius: 3px; }
QSplitter::handle { background: $line; }
""")


def style_sheet(palette: Palette, mono_family: str) -> str:
    tokens = {name: getattr(palette, name) for name in Palette.__slots__ if name != "is_dark"}
    return _SHEET.substitute(
        tokens,
        accent_hover=_mix(palette.accent, palette.text if palette.is_dark else "#000000", 0.12),
        hover=_mix(palette.surface, palette.raised, 0.5),
        mono=mono_family,
        chevron=icon_path("chevron").as_posix(),
        check=icon_path("check-on-dark" if palette.is_dark else "check-on-light").as_posix(),
    )


def _mix(first: str, second: str, share: float) -> str:
    """`first` with `share` of `second` in it."""
    pairs = zip(bytes.fromhex(first[1:]), bytes.fromhex(second[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)
