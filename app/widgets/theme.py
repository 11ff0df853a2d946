"""What the window looks like now: palette, fonts, icons, style sheet; follows the system's light or dark mode.

Knows no page and no setting: whoever reads the setting calls `set_mode`.
"""

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QIcon, QPalette
from PySide6.QtWidgets import QApplication

from app.widgets.icons import icon
from app.widgets.palette import DARK, LIGHT, Palette
from app.widgets.style_sheet import style_sheet

__all__ = ["DARK", "LIGHT", "Palette", "Theme", "icon", "mono_font", "ui_font"]

BODY_PX = 13
# Asked for by name: the generic alias "monospace" costs a slow look-up and a warning where it is no real family.
_MONO_FAMILIES = (
    "SF Mono", "Menlo", "Cascadia Mono", "Consolas", "JetBrains Mono", "Noto Sans Mono", "DejaVu Sans Mono", "Liberation Mono",
)  # fmt: skip
_SCHEMES = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}


def ui_font(px: int = BODY_PX, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    font = QFontDatabase.systemFont(QFontDatabase.SystemFont.GeneralFont)
    font.setPixelSize(px)
    font.setWeight(weight)
    return font


def mono_font(px: int = 12) -> QFont:
    font = QFont(_mono_family())
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setPixelSize(px)
    return font


def _mono_family() -> str:
    installed = set(QFontDatabase.families())
    named = (family for family in _MONO_FAMILIES if family in installed)
    return next(named, QFontDatabase.systemFont(QFontDatabase.SystemFont.FixedFont).family())


class Theme(QObject):
    """`palette` always holds the colours in use; `changed` tells that another one has taken its place."""

    changed = Signal()

    def __init__(self, mode: str = "system", parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._app: QApplication | None = None
        self._mode = mode
        self.palette = self._wanted()
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._follow)

    @property
    def mode(self) -> str:
        return self._mode

    def set_mode(self, mode: str) -> None:
        """'system', 'light' or 'dark'."""
        assert mode in ("system", "light", "dark"), f"no theme is called {mode!r}"
        self._mode = mode
        # The window frame is drawn by the system: tell it too.
        hints = QGuiApplication.styleHints()
        hints.setColorScheme(_SCHEMES.get(mode, Qt.ColorScheme.Unknown))
        self._follow()

    def apply(self, app: QApplication) -> None:
        """Dress the application, now and after every change."""
        self._app = app
        app.setStyle("Fusion")
        app.setFont(ui_font())
        self._dress(app)

    def icon(self, name: str, color: str | None = None, px: int = 20) -> QIcon:
        """An icon of `resources/icons` in '#rrggbb', by default in the colour of secondary text."""
        return icon(name, color or self.palette.muted, px)

    def _wanted(self) -> Palette:
        if self._mode == "system":
            is_dark = QGuiApplication.styleHints().colorScheme() == Qt.ColorScheme.Dark
            return DARK if is_dark else LIGHT
        return DARK if self._mode == "dark" else LIGHT

    def _follow(self) -> None:
        wanted = self._wanted()
        if wanted is self.palette:
            return
        self.palette = wanted
        if self._app is not None:
            self._dress(self._app)
        self.changed.emit()

    def _dress(self, app: QApplication) -> None:
        app.setPalette(_qt_palette(self.palette))
        app.setStyleSheet(style_sheet(self.palette, _mono_family()))


def _qt_palette(palette: Palette) -> QPalette:
    """For what the style sheet leaves to Fusion: check boxes, selections, links, placeholders."""
    role = QPalette.ColorRole
    colors = {
        role.Window: palette.bg, role.WindowText: palette.text, role.Base: palette.surface, role.AlternateBase: palette.raised,
        role.Text: palette.text, role.PlaceholderText: palette.faint, role.Button: palette.surface,
        role.ButtonText: palette.text, role.BrightText: palette.bad, role.ToolTipBase: palette.raised,
        role.ToolTipText: palette.text, role.Highlight: palette.accent, role.HighlightedText: palette.on_accent,
        role.Link: palette.accent, role.LinkVisited: palette.accent, role.Accent: palette.accent, role.Light: palette.raised,
        role.Midlight: palette.raised, role.Mid: palette.line, role.Dark: palette.line, role.Shadow: palette.line,
    }  # fmt: skip
    result = QPalette()
    for color_role, color in colors.items():
        result.setColor(color_role, QColor(color))
    for color_role in (role.WindowText, role.Text, role.ButtonText):
        result.setColor(QPalette.ColorGroup.Disabled, color_role, QColor(palette.faint))
    return result
