"""The meter's panel and strip: what they say to a screen reader, and that each state is painted."""

import pytest
from PySide6.QtCore import QPointF
from PySide6.QtGui import QColor, QImage
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.core.reading import Limit, LinkReading, PromptReading, Reading
from app.widgets.meter_panel import MeterPanel, origins_in_words, summary, three_short
from app.widgets.meter_parts import outside
from app.widgets.meter_strip import MeterStrip
from app.widgets.palette import DARK, LIGHT, Palette
from app.widgets.theme import Theme, ui_font
from engine.protocol import Link, Origin

GB = 10**9
DECODING = Reading(
    tokens_per_second=18.4, predicted_range=(16.2, 20.1), bytes_per_token=1.87 * GB, predicted_bytes=2 * GB,
    bars=tuple({Link.VRAM: GB, Link.RAM: GB // 2, Link.DISK: GB // 4} for _ in range(60)),
    links=(LinkReading(Link.VRAM, 412, 760, 400), LinkReading(Link.RAM, 47.1, 56.3, 47, Origin.DERIVED)),
    limit=Limit(Link.RAM, "experts computed on the CPU"), found={Link.VRAM: 0.6, Link.RAM: 0.3, Link.DISK: 0.1},
    p50_seconds=0.053, p95_seconds=0.071, waited_seconds=0.004,
)  # fmt: skip
PROMPT = Reading(prompt=PromptReading(1240, 200, 310, 4 * GB, 620.0))


def picture(widget: QWidget) -> QImage:
    return widget.grab().toImage()


def has_color(image: QImage, color: str) -> bool:
    wanted = QColor(color).rgb()
    return any(image.pixel(x, y) == wanted for x in range(0, image.width(), 2) for y in range(0, image.height(), 2))


@pytest.mark.parametrize(("mode", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_the_panel_paints_links_in_their_colours(qtbot: QtBot, mode: str, palette: Palette) -> None:
    panel = MeterPanel(Theme(mode))
    qtbot.addWidget(panel)
    panel.resize(300, 600)
    empty = picture(panel)
    panel.set_reading(DECODING)
    painted = picture(panel)
    assert painted != empty
    assert all(has_color(painted, color) for color in (palette.vram, palette.ram, palette.disk))
    assert not has_color(painted, palette.pcie), "a link of which nothing is known is left out"


def test_figures_explain_themselves(qtbot: QtBot) -> None:
    panel = MeterPanel(Theme("light"))
    qtbot.addWidget(panel)
    panel.resize(300, 620)
    panel.set_reading(DECODING)
    picture(panel)
    tips = {panel.tip_at(QPointF(x, y)) for x in range(20, 280, 20) for y in range(0, 620, 5)} - {""}
    assert len(tips) == 5, "two links and three times"
    assert any("waited for a link" in tip for tip in tips)
    assert panel.tip_at(QPointF(100, 40)) == ""


def test_links_without_ceiling_or_traffic_are_left_out(qtbot: QtBot) -> None:
    panel = MeterPanel(Theme("light"))
    qtbot.addWidget(panel)
    panel.resize(300, 620)
    empty = picture(panel)
    assert not any(has_color(empty, color) for color in (LIGHT.vram, LIGHT.pcie, LIGHT.ram, LIGHT.disk))


def test_names_of_small_shares_stand_beside_the_bar(qtbot: QtBot) -> None:
    font = ui_font(11)
    assert outside({Link.RAM: 0.6, Link.DISK: 0.4}, 264, font) == {}
    assert outside({Link.RAM: 0.97, Link.DISK: 0.03}, 264, font) == {Link.DISK: "Disk 3 %"}
    assert outside({Link.VRAM: 0.996, Link.RAM: 0.003, Link.DISK: 0.001}, 264, font) == {
        Link.RAM: "RAM <1 %", Link.DISK: "Disk <1 %",
    }  # fmt: skip
    panel = MeterPanel(Theme("light"))
    qtbot.addWidget(panel)
    panel.resize(300, 620)
    pictures = []
    for share in (0.03, 0.0):
        panel.set_reading(Reading(found={Link.RAM: 1 - share, Link.DISK: share}))
        image = picture(panel)
        pictures.append(sum(image.pixelColor(x, y).name() == LIGHT.disk for x in range(230, 290) for y in range(300, 420)))
    assert pictures[0] > 10
    assert pictures[1] == 0


def test_the_prompt_has_its_own_view(qtbot: QtBot) -> None:
    panel = MeterPanel(Theme("light"))
    qtbot.addWidget(panel)
    panel.resize(300, 600)
    panel.set_reading(PROMPT)
    assert has_color(picture(panel), LIGHT.accent)
    assert "510 of 1\u202f240 tokens" in panel.accessibleDescription()


def test_the_strip_paints_as_much_as_fits(qtbot: QtBot) -> None:
    strip = MeterStrip(Theme("light"))
    qtbot.addWidget(strip)
    strip.set_reading(DECODING)
    for width in (200, 400, 700):
        strip.resize(width, 36)
        assert has_color(picture(strip), LIGHT.vram)


def test_summary_is_the_panel_in_a_sentence() -> None:
    assert summary(DECODING) == "18.4 tokens per second, predicted 16–20, limited by RAM, 1.87 GB per token"
    assert summary(Reading()) == "No figures yet"


def test_origins_are_named() -> None:
    assert origins_in_words(list(DECODING.links)) == "RAM derived, others measured"
    assert origins_in_words([LinkReading(Link.RAM, 5.0, origin=Origin.DERIVED)]) == "RAM derived"
    assert origins_in_words([LinkReading(Link.DISK, 5.0)]) == "all measured"
    assert origins_in_words([LinkReading(Link.DISK, None, 7.0)]) == ""


@pytest.mark.parametrize(("value", "text"), [(412.3, "412"), (24.64, "24.6"), (0.61, "0.6"), (0.004, "0.00"), (99.96, "100")])
def test_rates_are_short(value: float, text: str) -> None:
    assert three_short(value) == text
