"""The pages of the window, one line each. Importing this imports none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class PageSpec:
    """`factory` is 'module:name' of a callable (services, parent) -> QWidget.

    A page may have `activate()` and a signal `page_wanted(key)`.
    """

    key: str
    title: str
    icon: str
    factory: str
    shortcut: str
    is_last: bool = False  # at the lower end of the rail

    def load(self) -> Callable[..., Any]:
        module, name = self.factory.split(":")
        factory: Callable[..., Any] = getattr(import_module(module), name)
        return factory


PAGES: tuple[PageSpec, ...] = (
    PageSpec("chat", "Chat", "chat", "app.pages.chat:ChatPage", "Ctrl+1"),
    PageSpec("settings", "Settings", "settings", "app.pages.settings:SettingsPage", "Ctrl+,", is_last=True),
)
