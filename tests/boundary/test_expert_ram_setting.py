"""The window checks the memory settings with a grammar of its own, and the engine reads it with another: they must agree."""

import itertools

import pytest

from app.core.settings import Settings
from engine.errors import EngineError
from engine.units import parse_bytes

GOOD = ("800000000", "3GB", "512 MiB", "30%", "12.5 GiB", "0", "7b", "1k", "2 tb", " 3 gb ", "100%", "0%", "33.3 %", "1TiB")
BAD = (
    "12gi",
    "12 gibs",
    "a lot",
    "-3GB",
    "130%",
    "-1%",
    "%",
    "GB",
    "3 GB 2",
    "3,5GB",
    "1.GB",
    "30%%",
    "3%GB",
    "nan%",
    "0x10",
    "٣gx",
    " ",
)


def engine_takes(text: str) -> bool:
    try:
        parse_bytes(text, whole=10**9)
    except EngineError:
        return False
    return True


def window_takes(text: str) -> bool:
    takes = Settings.expert_ram.problem(text) == ""
    assert takes == (Settings.vram_limit.problem(text) == "")
    return takes


@pytest.mark.parametrize("text", GOOD)
def test_good_ones(text: str) -> None:
    assert engine_takes(text)
    assert window_takes(text)


@pytest.mark.parametrize("text", BAD)
def test_bad_ones(text: str) -> None:
    assert not engine_takes(text)
    assert not window_takes(text)


def test_they_agree_on_every_combination() -> None:
    numbers = ("", "0", "12", "1.5", ".5", "5.", "1e3", "1_0", "-1", "+1", "100", "100.1", "٣", "nan", "inf")
    units = (
        "",
        "%",
        "b",
        *(f"{letter}{rest}" for letter in "kmgtKGpx\u212a" for rest in ("", "b", "B", "i", "ib", "iB")),
        "bb",
    )
    spaces = ("", " ", "\t", "\u00a0", "\n")
    texts = [number + space + unit + end for number, space, unit, end in itertools.product(numbers, spaces, units, spaces)]
    assert [text for text in texts if text and engine_takes(text) != window_takes(text)] == []


def test_empty_is_automatic_and_never_reaches_the_engine() -> None:
    assert window_takes("")
