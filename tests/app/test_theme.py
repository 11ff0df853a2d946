"""Colours, icons and the live switch between light and dark."""

import re
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QGuiApplication
from PySide6.QtWidgets import QApplication, QLabel
from pytestqt.qtbot import QtBot

from app.widgets.icons import DRAWN_COLOR, icon_path, pixmap
from app.widgets.style_sheet import style_sheet
from app.widgets.theme import DARK, LIGHT, Palette, Theme, icon, mono_font

ICONS = (
    "chat", "models", "downloads", "meter", "settings", "plus", "search", "copy", "refresh", "stop", "send", "chevron", "flame",
    "warning", "trash", "edit", "close",
)  # fmt: skip


@pytest.fixture
def dressed(qapp: QApplication) -> Iterator[Theme]:
    theme = Theme("light")
    theme.apply(qapp)
    yield theme
    qapp.setStyleSheet("")
    QGuiApplication.styleHints().unsetColorScheme()


def luminance(color: str) -> float:
    """Relative luminance, WCAG 2.1."""
    channels = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    bright, dim = sorted((luminance(first), luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_text_can_be_read(palette: Palette) -> None:
    for ground in (palette.bg, palette.surface, palette.selection, palette.raised):
        assert contrast(palette.text, ground) >= 7
        assert contrast(palette.muted, ground) >= 4.5
    assert contrast(palette.on_accent, palette.accent) >= 4.4
    for link in (palette.vram, palette.pcie, palette.ram, palette.disk, palette.bad, palette.ok):
        assert contrast(link, palette.surface) >= 3


@pytest.mark.parametrize("palette", [DARK, LIGHT], ids=["dark", "light"])
def test_style_sheet_is_understood_and_its_files_exist(qtbot: QtBot, qapp: QApplication, palette: Palette) -> None:
    sheet = style_sheet(palette, "Mono")
    assert "$" not in sheet
    assert all(icon_path(name).exists() for name in re.findall(r"([\w-]+)\.svg", sheet))
    label = QLabel()  # Qt warns of a sheet that it cannot parse when a widget is polished; a warning fails the test
    qtbot.addWidget(label)
    label.setStyleSheet(sheet)
    label.ensurePolished()


def test_switch_is_live_and_told_once(qapp: QApplication, qtbot: QtBot, dressed: Theme) -> None:
    told: list[str] = []
    dressed.changed.connect(lambda: told.append(dressed.palette.bg))
    dressed.set_mode("dark")
    dressed.set_mode("dark")
    assert told == [DARK.bg]
    assert DARK.surface in qapp.styleSheet()
    assert qapp.palette().window().color() == QColor(DARK.bg)
    dressed.set_mode("light")
    assert told == [DARK.bg, LIGHT.bg]
    assert DARK.surface not in qapp.styleSheet()


def test_system_that_says_nothing_is_light(qapp: QApplication, dressed: Theme) -> None:
    QGuiApplication.styleHints().unsetColorScheme()
    dressed.set_mode("system")
    assert QGuiApplication.styleHints().colorScheme() is not Qt.ColorScheme.Dark
    assert dressed.palette is LIGHT


@pytest.mark.parametrize("name", ICONS)
def test_icons_are_drawn_in_the_colour_asked_for(qapp: QApplication, name: str) -> None:
    assert DRAWN_COLOR in icon_path(name).read_text()
    image = pixmap(name, "#ff0000", 20, 2.0).toImage()
    assert image.size() == QSize(40, 40)
    pixels = [image.pixelColor(x, y) for x in range(40) for y in range(40)]
    colors = [color for color in pixels if color.alpha() > 250]
    assert colors
    assert all(color.red() > 250 and color.green() < 5 and color.blue() < 5 for color in colors)


def test_icon_is_sharp_on_every_screen(qapp: QApplication) -> None:
    for scale in (1.0, 1.25, 2.0):
        image = icon("chat", "#000000").pixmap(QSize(20, 20), scale)
        assert image.size() == QSize(20, 20) * scale
        assert image.devicePixelRatio() == scale


def test_mono_font_is_mono(qapp: QApplication) -> None:
    metrics = QFontMetricsF(mono_font(12))
    assert metrics.horizontalAdvance("1") == metrics.horizontalAdvance("W")
