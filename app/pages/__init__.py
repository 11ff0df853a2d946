"""The pages of the window, one line each. Importing this imports none of them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class PageSpec:
    """`factory` is 'module:name' of a callable (services, parent) -> QWidget.

    A page may have `activate()`, a signal `page_wanted(key)`, a signal `opening_wanted(key, what)` and `open_item(what)`, which
    is called on the page of that key. While its `has_rail` is false, it has the whole window.
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
    PageSpec("models", "Models", "models", "app.pages.models:ModelsPage", "Ctrl+2"),
    PageSpec("downloads", "Downloads", "downloads", "app.pages.downloads:DownloadsPage", "Ctrl+3"),
    PageSpec("wizard", "Set up and plan", "meter", "app.pages.wizard:WizardPage", "Ctrl+4"),
    PageSpec("settings", "Settings", "settings", "app.pages.settings:SettingsPage", "Ctrl+,", is_last=True),
)
