"""Every setting, declared once: default, type, label, description, choices. Kept in one JSON file.

No Qt here: the settings page is generated from these declarations and whoever cares watches for changes.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, overload

from app.core.paths import corrupt_name

T = TypeVar("T", bound=str | int | float | bool)
_log = logging.getLogger(__name__)


class Setting(Generic[T]):
    """A declaration in `Settings`. Its key is the attribute's name, its type that of the default.

    Without a `label` it is no business of the settings page. `check` returns what is wrong with a value, "" if nothing.
    """

    key = ""

    def __init__(
        self,
        default: T,
        label: str = "",
        description: str = "",
        *,
        group: str = "",
        choices: Mapping[T, str] | None = None,
        between: tuple[T, T] | None = None,
        check: Callable[[T], str] | None = None,
        placeholder: str = "",
    ) -> None:
        self.default = default
        self.label, self.description, self.group, self.placeholder = label, description, group, placeholder
        self.choices: Mapping[T, str] = choices or {}
        self.between = between
        self._check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.key = name

    @overload
    def __get__(self, settings: None, owner: type) -> Self: ...
    @overload
    def __get__(self, settings: "Settings", owner: type) -> T: ...
    def __get__(self, settings: "Settings | None", owner: type) -> Self | T:
        if settings is None:
            return self
        value: T = settings.get(self.key)
        return value

    def __set__(self, settings: "Settings", value: T) -> None:
        settings.set(self.key, value)

    def problem(self, value: Any) -> str:
        """One sentence on why `value` cannot be this setting, "" if it can."""
        is_whole_float = type(self.default) is float and type(value) is int
        if type(value) is not type(self.default) and not is_whole_float:
            return f"{value!r} is not of the right type."
        if self.choices and value not in self.choices:
            return f"{value!r} is not one of {', '.join(map(str, self.choices))}."
        if self.between and not self.between[0] <= value <= self.between[1]:
            return f"{value} is not between {self.between[0]} and {self.between[1]}."
        return self._check(value) if self._check else ""


# What `engine.units.parse_bytes` takes; the window may not import it, a boundary test holds the two together.
_AMOUNT = re.compile(r"\s*\d+(?:\.\d+)?\s*([A-Za-z]*)\s*")
_UNITS = ("", "b", "k", "kb", "kib", "m", "mb", "mib", "g", "gb", "gib", "t", "tb", "tib")


def _check_amount(text: str) -> str:
    amount = _AMOUNT.fullmatch(text)
    if not text or (amount and amount[1].lower() in _UNITS) or _is_share(text):
        return ""
    return "Write an amount such as 12GB, a share such as 30%, or leave it empty."


def _is_share(text: str) -> bool:
    number, percent, rest = text.strip().partition("%")
    try:
        return bool(percent) and not rest and 0 <= float(number) <= 100
    except ValueError:
        return False


def _check_context(tokens: int) -> str:
    return "" if tokens == 0 or tokens >= 256 else "Write 256 or more, or 0 for automatic."


def _check_chunk(tokens: int) -> str:
    return "" if tokens == 0 or tokens >= 64 else "Write 64 to 2048, or 0 for automatic."


def _check_folder(text: str) -> str:
    path = Path(text)
    if not text or (path.is_absolute() and path.parent != path):
        return ""
    return "Write the whole path of a folder, not of a drive, or leave it empty."


class Settings:
    """Reads and writes as attributes: `settings.theme = "dark"`. Each change is on disk when the assignment returns.

    `notice` is one sentence for the person when the file could not be used as it was, else "".
    """

    theme = Setting(
        "system", "Theme", "Light, dark, or as the system has it.", group="Appearance",
        choices={"system": "As the system", "light": "Light", "dark": "Dark"},
    )  # fmt: skip
    expert_ram = Setting(
        "", "Memory for experts", "How much of the experts stays in RAM: an amount or a share. Used at the next load.",
        group="Engine", check=_check_amount, placeholder="Automatic, or 12GB, or 30%",
    )  # fmt: skip
    vram_limit = Setting(
        "", "Graphics memory", "What a model may take of the graphics cards: an amount, a share of what is free for it, or 0 "
        "for none. The driver takes some hundred MB more. Used at the next load.",
        group="Engine", check=_check_amount, placeholder="Automatic, 8GB, 50% or 0 for none",
    )  # fmt: skip
    context = Setting(
        0, "Context", "Tokens of conversation that the model can see; 0 is automatic, else 256 or more. Used at the next load.",
        group="Engine", between=(0, 1_048_576), check=_check_context,
    )  # fmt: skip
    prefill_chunk = Setting(
        0, "Prompt tokens at once", "How many tokens of a prompt are read together: more are faster and take more memory; 0 is "
        "automatic, else 64 to 2048. Used at the next load.",
        group="Engine", between=(0, 2048), check=_check_chunk,
    )  # fmt: skip
    kv_type = Setting(
        "", "Keys and values", "How exactly what was read of a conversation is kept: fewer bits take less memory. "
        "Used at the next load.",
        group="Engine", choices={"": "Automatic", "fp32": "32 bit", "bf16": "16 bit", "q8": "8 bit"},
    )  # fmt: skip
    temperature = Setting(
        0.7, "Temperature", "0 always takes the likeliest token; higher is more varied.", group="Answers", between=(0.0, 2.0)
    )  # fmt: skip
    top_p = Setting(
        0.95, "Top-p", "Only the likeliest tokens that add up to this share are drawn from; 1 is all.", group="Answers",
        between=(0.01, 1.0),
    )  # fmt: skip
    max_tokens = Setting(
        1024, "Longest answer", "Tokens after which an answer is cut off.", group="Answers", between=(1, 1_048_576)
    )  # fmt: skip
    download_folder = Setting(
        "", "Folder for models", "Where downloads go. Empty: the Hugging Face cache, which other programs share.",
        group="Downloads", placeholder="The Hugging Face cache", check=_check_folder,
    )  # fmt: skip
    download_limit = Setting(
        0, "Bandwidth limit", "MB per second for all downloads together; 0 is no limit.", group="Downloads",
        between=(0, 100_000),
    )  # fmt: skip
    resume_downloads = Setting(
        True, "Go on at start", "Unfinished downloads continue when Stoker is opened.", group="Downloads"
    )  # fmt: skip
    has_set_up = Setting(False)  # the set-up was finished or left; it comes by itself only before
    model = Setting("")  # name of the last one used
    loading_model = Setting("")  # set while a model is being loaded; still set at start: the last session died of it
    meter_visible = Setting(True)
    window_geometry = Setting("")  # base64

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watchers: list[Callable[[str], None]] = []
        self._unknown: dict[str, Any] = {}  # of a newer version: written back as they were
        self._values: dict[str, Any] = {}
        self.notice = ""
        self._load()

    @classmethod
    def declarations(cls) -> tuple[Setting[Any], ...]:
        return tuple(item for item in vars(cls).values() if isinstance(item, Setting))

    def get(self, key: str) -> Any:
        return self._values.get(key, getattr(type(self), key).default)

    def set(self, key: str, value: Any) -> None:
        """Raises ValueError with a sentence for the person when the value does not fit."""
        setting: Setting[Any] = getattr(type(self), key)
        if problem := setting.problem(value):
            raise ValueError(problem)
        if self.get(key) == value:
            return
        self._values[key] = type(setting.default)(value)
        self._save()
        for watcher in tuple(self._watchers):
            watcher(key)

    def watch(self, watcher: Callable[[str], None]) -> None:
        """`watcher(key)` is called after every change."""
        self._watchers.append(watcher)

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError(f"a {type(content).__name__} where settings should be")
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            self._set_aside(error)
            return
        declared = {setting.key: setting for setting in self.declarations()}
        for key, value in content.items():
            if key not in declared:
                self._unknown[key] = value
            elif problem := declared[key].problem(value):
                _log.warning("setting %s is back at its default: %s", key, problem)
            else:
                self._values[key] = type(declared[key].default)(value)

    def _set_aside(self, error: Exception) -> None:
        kept = corrupt_name(self._path, time.time())
        _log.error("settings unreadable: %s", error)
        try:
            os.replace(self._path, kept)
            self.notice = f"The settings could not be read and are at their defaults. The old file is kept as {kept.name}."
        except OSError:
            self.notice = f"The settings could not be read and are at their defaults. The file is {self._path}."

    def _save(self) -> None:
        """Atomic: the old file or the new one is there, never half of one. A full disk must not end the session."""
        content = json.dumps({**self._unknown, **self._values}, indent=2, ensure_ascii=False)
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(content + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
        except OSError as error:
            _log.error("settings not saved: %s", error)
            draft.unlink(missing_ok=True)
