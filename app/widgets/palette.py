"""The colours of the window, once for dark and once for light. Values only; knows no widget."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Palette:
    """Every colour as '#rrggbb'. The four link colours mean the same thing wherever they appear."""

    is_dark: bool
    bg: str
    surface: str
    raised: str
    line: str
    selection: str
    text: str
    muted: str
    faint: str
    accent: str
    on_accent: str
    vram: str
    pcie: str
    ram: str
    disk: str
    ok: str
    warn: str
    bad: str


DARK = Palette(
    is_dark=True, bg="#14161a", surface="#1b1e24", raised="#242830", line="#2f343e", selection="#2a2f39",
    text="#e8eaed", muted="#98a1ad", faint="#6b7480", accent="#f28a3c", on_accent="#1a1207",
    vram="#f2a93c", pcie="#e8674c", ram="#4fb8a8", disk="#8493ea", ok="#6cc08b", warn="#e6b450", bad="#ef6f6c",
)  # fmt: skip

LIGHT = Palette(
    is_dark=False, bg="#f7f6f3", surface="#ffffff", raised="#f1efea", line="#e0ddd5", selection="#ebe8e1",
    text="#1d2126", muted="#5d6570", faint="#8b929b", accent="#c25a14", on_accent="#ffffff",
    vram="#b96f0c", pcie="#c0432a", ram="#17796c", disk="#4453bd", ok="#2b7d4c", warn="#8f6400", bad="#b8322f",
)  # fmt: skip
