"""Settings: a bad file, a bad value or a full disk never ends the session, and nothing is lost silently."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import Settings


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.json"


def test_every_change_is_on_disk_at_once(path: Path) -> None:
    settings = Settings(path)
    settings.theme = "dark"
    settings.temperature = 1
    settings.model = "Qwen3 – 田中"
    again = Settings(path)
    assert (again.theme, again.temperature, again.model) == ("dark", 1.0, "Qwen3 – 田中")
    assert again.notice == ""
    assert [file.name for file in path.parent.iterdir()] == ["settings.json"]


@pytest.mark.parametrize("content", ["{ half", "[1, 2]", "", "\x00\x00", '"text"', "[" * 100_000])
def test_unreadable_file_is_kept_and_told(path: Path, content: str) -> None:
    path.write_text(content)
    settings = Settings(path)
    (kept,) = path.parent.glob("settings.json.corrupt-*")
    assert kept.read_text() == content
    assert kept.name in settings.notice
    assert settings.theme == "system"
    settings.theme = "light"
    assert Settings(path).theme == "light"


def test_two_unreadable_files_in_one_second_are_both_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_764_600_000.0)
    for content in ("first", "second"):
        path.write_text(content)
        Settings(path)
    assert sorted(file.read_text() for file in path.parent.glob("*.corrupt-*")) == ["first", "second"]


def test_bad_values_fall_back_one_by_one_and_unknown_keys_survive(path: Path) -> None:
    content = {"theme": "purple", "temperature": "hot", "top_p": 7, "context": True, "max_tokens": 99, "future_key": [1]}
    path.write_text(json.dumps(content))
    settings = Settings(path)
    assert (settings.theme, settings.temperature, settings.top_p, settings.context) == ("system", 0.7, 0.95, 0)
    assert settings.max_tokens == 99
    settings.theme = "dark"
    assert json.loads(path.read_text())["future_key"] == [1]


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("expert_ram", "30%", "130%"),
        ("expert_ram", "12.5 GiB", "a lot"),
        ("expert_ram", "", "-3GB"),
        ("expert_ram", "800000000", "12gi"),
        ("vram_limit", "50%", "150%"),
        ("vram_limit", "0", "none"),
        ("vram_limit", "8GB", "8 parrots"),
        ("context", 0, 100),
        ("context", 8192, -1),
        ("temperature", 0.0, 2.5),
        ("theme", "dark", "Dark"),
        ("meter_visible", False, 0),
        ("max_tokens", 1, 1.5),
    ],
)
def test_values_are_checked(path: Path, key: str, good: Any, bad: Any) -> None:
    settings = Settings(path)
    settings.set(key, good)
    with pytest.raises(ValueError):
        settings.set(key, bad)
    assert Settings(path).get(key) == good


def test_watchers_hear_of_real_changes_only(path: Path) -> None:
    settings = Settings(path)
    heard: list[str] = []
    settings.watch(heard.append)
    settings.theme = "system"
    settings.theme = "dark"
    settings.theme = "dark"
    assert heard == ["theme"]


def test_crash_while_writing_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(path)
    settings.theme = "dark"

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    settings.theme = "light"
    assert settings.theme == "light"
    assert Settings(path).theme == "dark"
    assert [file.name for file in path.parent.iterdir()] == ["settings.json"]


def test_every_shown_setting_explains_itself() -> None:
    shown = [setting for setting in Settings.declarations() if setting.label]
    assert {setting.key for setting in shown} == {
        "theme", "expert_ram", "vram_limit", "context", "prefill_chunk", "kv_type", "temperature", "top_p", "max_tokens", "download_folder", "download_limit", "resume_downloads",
    }  # fmt: skip
    assert all(setting.description and setting.group for setting in shown)
    assert all(setting.problem(setting.default) == "" for setting in Settings.declarations())
