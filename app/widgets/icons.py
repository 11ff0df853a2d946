"""Line icons in any colour, sharp at any scale. Knows the folder `resources/icons` and nothing of the theme."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

ICON_PX = 20
DRAWN_COLOR = "#8b929b"  # in the files, so that a style sheet can show one as it is; replaced when an icon is rendered
_SCALES = (1.0, 1.25, 1.5, 2.0, 3.0)


def icon_path(name: str) -> Path:
    return Path(str(files("resources"))) / "icons" / f"{name}.svg"


@cache
def _source(name: str) -> str:
    return icon_path(name).read_text(encoding="utf-8")


def pixmap(name: str, color: str, px: int = ICON_PX, scale: float = 1.0) -> QPixmap:
    """The icon `px` wide and high in device-independent pixels, for a screen of that scale."""
    renderer = QSvgRenderer(QByteArray(_source(name).replace(DRAWN_COLOR, color).encode()))
    image = QPixmap(round(px * scale), round(px * scale))
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    renderer.render(painter, QRectF(0, 0, image.width(), image.height()))
    painter.end()
    image.setDevicePixelRatio(scale)
    return image


def icon(name: str, color: str, px: int = ICON_PX) -> QIcon:
    """`name` is a file of `resources/icons` without its ending, `color` is '#rrggbb'."""
    result = QIcon()
    for scale in _SCALES:
        result.addPixmap(pixmap(name, color, px, scale))
    return result
